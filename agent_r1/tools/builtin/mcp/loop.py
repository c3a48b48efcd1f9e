"""The event loop of all MCP servers, in a thread of its own, so that their tools can be called from any loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_loop: asyncio.AbstractEventLoop | None = None
_starting = threading.Lock()


def is_running() -> bool:
    """Whether any server has been used."""
    return _loop is not None


def submit(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Run a coroutine on the servers' loop, which starts with the first one."""
    global _loop
    with _starting:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="mcp-servers", daemon=True).start()
    return asyncio.run_coroutine_threadsafe(work, _loop)


async def from_any_loop(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that runs on the servers' loop."""
    return await asyncio.wrap_future(submit(work))
