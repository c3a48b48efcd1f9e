"""Blocking functions around coroutines, which also work where an event loop is running: in a notebook, in a coroutine.

@callable_in_event_loop
def try_tool(...):
    return run_cancelling(lambda: call(...))

And deadlines that hold only for time in which the event loop ran: `timeout`, `Timer`.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import Any, ParamSpec, TypeVar

from agent_r1.interrupts import stop_signals

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

_LATE_SECONDS = 0.1


def callable_in_event_loop(function: Callable[P, ResultT]) -> Callable[P, ResultT]:
    """Make a function that calls `asyncio.run` usable in a running event loop, which `asyncio.run` refuses.

    There the function runs in a thread of its own, with the caller's context variables, and the caller waits for it:
    the running loop stands still, as in any blocking call. Ctrl-C interrupts the function in either case.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> ResultT:
        if not _is_loop_running():
            return function(*args, **kwargs)
        return _call_in_thread(functools.partial(function, *args, **kwargs))

    return call


def run_cancelling(main: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
    """`asyncio.run(main())`, in which a signal cancels all of it and raises `RunInterrupted`."""

    async def cancellable() -> ResultT:
        with stop_signals() as stop, stop.cancelling():
            return await main()

    return asyncio.run(cancellable())


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, ResultT]]) -> list[ResultT]:
    """The results of all, in order. When one raises, or the caller is cancelled, none of them is left running."""
    first, *others = coroutines
    if not others:  # needs no task of its own
        return [await first]
    tasks = [asyncio.ensure_future(coroutine) for coroutine in (first, *others)]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def overtime(late: float, seconds: float) -> float:
    """How many seconds to add to a deadline of `seconds` that is noticed `late` seconds after it passed.

    Then the process was stopped (Ctrl-Z, SIGSTOP) or something blocked its event loop: what ended meanwhile has not
    been read yet, and what runs in this process has not run either.

    >>> overtime(0.01, 5.0), overtime(2.0, 5.0), overtime(3600.0, 5.0)
    (0.0, 2.0, 5.0)
    """
    return min(late, seconds) if late > _LATE_SECONDS else 0.0


class Timer:
    """Calls a function in `seconds`; later by `overtime`, once, when the event loop did not run at that time.

    A loop that is always late, because an engine computes on it, ends a call that hangs all the same.
    """

    def __init__(self, seconds: float, function: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._function = function
        self._is_extended = False
        self._start(seconds)

    def cancel(self) -> None:
        """Never call it."""
        self._handle.cancel()

    def _start(self, seconds: float) -> None:
        self._due = self._loop.time() + seconds
        self._handle = self._loop.call_at(self._due, self._fire)

    def _fire(self) -> None:
        more = overtime(self._loop.time() - self._due, self._seconds)
        if more and not self._is_extended:
            self._is_extended = True
            self._start(more)
        else:
            self._function()


@asynccontextmanager
async def timeout(seconds: float) -> AsyncIterator[asyncio.Timeout]:
    """`asyncio.timeout`, with the deadline of a `Timer`."""
    async with asyncio.timeout(None) as limit:
        now = asyncio.get_running_loop().time
        timer = Timer(seconds, lambda: limit.reschedule(now()))
        try:
            yield limit
        finally:
            timer.cancel()


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _call_in_thread(function: Callable[[], ResultT]) -> ResultT:
    returned: list[ResultT] = []
    raised: list[BaseException] = []

    def work() -> None:
        try:
            with stop.raised_in_this_thread():
                returned.append(function())
        except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
            raised.append(error)

    # Only the main thread receives signals, so they are handled out here; the function shares the handling through the
    # context.
    with stop_signals(blocks_loop=True) as stop:
        thread = threading.Thread(target=copy_context().run, args=(work,), name="agent_r1", daemon=True)
        thread.start()
        thread.join()
    if raised:
        raise raised[0]
    return returned[0]
