"""`Batcher`: gather calls that wait at the same time into batches."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from agent_r1.errors import portable

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Gathers items into batches of at most `size`; a batch waits at most `wait` seconds to fill.

    `slots` limits the batches that run at once; items that come while all slots are taken join the next batch.
    `run` returns a result, or an exception, for each item.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Awaitable[Sequence[Result | BaseException]]],
        *,
        size: int,
        wait: float,
        slots: asyncio.Semaphore,
    ) -> None:
        self._run = run
        self._size = size
        self._wait = wait
        self._slots = slots
        self._waiting: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def submit(self, item: Item) -> Result:
        """The result of one item, once its batch has run."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._waiting.append((item, future))
        if len(self._waiting) % self._size == 0:
            self._start()
        elif self._timer is None:
            self._timer = loop.call_later(self._wait, self._start)
        return await future

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        task = asyncio.get_running_loop().create_task(self._drain())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _drain(self) -> None:
        """Run waiting items, batch after batch, until none are left."""
        async with self._slots:
            while batch := self._take():
                await self._settle(batch)

    def _take(self) -> list[tuple[Item, asyncio.Future[Result]]]:
        """The next batch, without items whose callers were cancelled."""
        batch: list[tuple[Item, asyncio.Future[Result]]] = []
        while self._waiting and len(batch) < self._size:
            entry = self._waiting.popleft()
            if not entry[1].done():
                batch.append(entry)
        return batch

    async def _settle(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        try:
            results: Sequence[Result | BaseException] = await self._run([item for item, _ in batch])
        except BaseException as error:
            results = [error] * len(batch)
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():
                continue
            if isinstance(result, asyncio.CancelledError):
                future.cancel()
            elif isinstance(result, BaseException):
                future.set_exception(portable(result))
            else:
                future.set_result(result)
