"""Deadlines for tool code: a call that takes too long is cancelled, and left behind if it ignores that."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from agent_r1.errors import INTERRUPTIONS, portable
from agent_r1.event_loop import Timer
from agent_r1.tools.base import ToolTimeoutError
from agent_r1.tools.workers.threads import call_off_loop

_GRACE_SECONDS = 1.0


async def call_within(seconds: float, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of a sync or async function; `ToolTimeoutError` when it takes longer, also when it ignores being
    cancelled."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(_portably(function, args, kwargs))
    # Does what asyncio.wait does at half its cost, which dominates with hundreds of short calls at once.
    over: asyncio.Future[None] = loop.create_future()
    timer = Timer(seconds, lambda: _wake(over))
    task.add_done_callback(lambda done: _wake(over))
    try:
        await over
    except asyncio.CancelledError:
        await _stop(task)
        raise
    finally:
        timer.cancel()
    if not task.done():
        await _stop(task)
        raise ToolTimeoutError
    if task.cancelled():
        raise RuntimeError("the tool cancelled itself")
    return task.result()


def _wake(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)


async def _portably(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The function's result. Whatever it raises must not stop the event loop."""
    try:
        if inspect.iscoroutinefunction(function):
            return await function(*args, **kwargs)
        return await call_off_loop(function, *args, **kwargs)
    except (Exception, *INTERRUPTIONS):
        raise
    except SystemExit as error:
        raise RuntimeError(f"the tool tried to exit ({error})") from error
    except BaseException as error:
        raise portable(error) from error


async def _stop(task: asyncio.Future[Any]) -> None:
    """Cancel a task, give it a moment to clean up, and retrieve its exception, so that asyncio does not log it."""
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    task.cancel()
    await asyncio.wait({task}, timeout=_GRACE_SECONDS)
