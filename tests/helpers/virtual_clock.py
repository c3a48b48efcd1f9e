"""An event loop whose clock jumps to the next timer: waiting takes no time, and how long it would have been is exact.

For tests of how waits are arranged (side by side, or one after the other), which a busy machine must not spoil. What
processors need is not on this clock, nor are threads and other processes: `benchmarks/speed/concurrency.py` has those.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Where it would have slept until a timer, the clock is put forward instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self.now += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop. Its clock starts at 0."""

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now

    def put_forward(self, seconds: float) -> None:
        """As if all had stood still for that long."""
        self._clock.now += seconds


def in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns, run in a `VirtualLoop`."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def seconds_waited(work: Coroutine[Any, Any, Any]) -> float:
    """How long `work` would take if processors took no time.

    >>> seconds_waited(asyncio.sleep(3600))
    3600.0
    """

    async def timed() -> float:
        await work
        return asyncio.get_running_loop().time()

    return in_virtual_time(timed())
