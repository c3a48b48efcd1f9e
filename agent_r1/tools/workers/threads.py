"""Run sync code in a thread, so that it does not block the event loop.

A thread cannot be killed. When the task that waits for it is cancelled, the thread is abandoned: it keeps running and
is counted in `num_abandoned_threads` until it ends. It blocks neither other calls (each has its own thread, so no pool
is exhausted) nor the end of the program (threads are daemons). Code that may hang belongs in a worker process:
`@tool(process=True)`.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any

from agent_r1.errors import portable

MAX_ABANDONED_THREADS = 1000

_lock = threading.Lock()
_num_abandoned = 0


def num_abandoned_threads() -> int:
    """Threads that still run although the task that waited for them is gone."""
    return _num_abandoned


async def call_off_loop(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of a sync or async function: a coroutine function is awaited here, any other runs in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    returned = await run_in_thread(lambda: function(*args, **kwargs))
    return await returned if inspect.isawaitable(returned) else returned


async def run_in_thread(function: Callable[[], Any]) -> Any:
    """The result of `function`, run in its own thread. When the waiting task is cancelled the thread is abandoned."""
    if _num_abandoned >= MAX_ABANDONED_THREADS:
        raise RuntimeError(
            f"{_num_abandoned} threads hang in tools that timed out; give those tools process=True, which kills them"
        )
    thread = _Thread(function)
    try:
        return await thread.outcome
    except asyncio.CancelledError:
        thread.abandon()
        raise


class _Thread:
    """One call in a daemon thread."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[Any] = self._loop.create_future()
        self._is_abandoned = False
        self._is_over = False
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._run, function), daemon=True, name="tool").start()

    def abandon(self) -> None:
        """Count this thread as abandoned if it still runs."""
        global _num_abandoned
        with _lock:
            if not self._is_over:
                self._is_abandoned = True
                _num_abandoned += 1

    def _run(self, function: Callable[[], Any]) -> None:
        global _num_abandoned
        result: Any = None
        error: BaseException | None = None
        try:
            result = function()
        except BaseException as raised:
            error = raised
        with _lock:
            self._is_over = True
            if self._is_abandoned:
                _num_abandoned -= 1
                return
        try:
            self._loop.call_soon_threadsafe(self._hand_over, result, error)
        except RuntimeError:  # the loop is closed
            return

    def _hand_over(self, result: Any, error: BaseException | None) -> None:
        if self.outcome.done():
            return
        if error is not None:
            self.outcome.set_exception(portable(error))
        else:
            self.outcome.set_result(result)
