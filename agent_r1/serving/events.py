"""Streams of events before they are sent: what a request holds while it streams, and several streams as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from typing import TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Reserved:
    """Events that are ready to be produced, and what is held for them: also when the first one is never asked for."""

    events: AsyncGenerator[bytes, None]
    resources: ExitStack


async def merged(streams: Sequence[AsyncGenerator[_T, None]]) -> AsyncGenerator[list[tuple[int, _T]], None]:
    """Items of several streams with the number of their stream, all that are there at a time together.

    When one stream fails, or the reader leaves, all are closed.
    """
    queue: asyncio.Queue[tuple[int, _T] | BaseException | None] = asyncio.Queue()

    async def read(number: int, stream: AsyncGenerator[_T, None]) -> None:
        async with aclosing(stream):
            async for item in stream:
                queue.put_nowait((number, item))

    def ended(task: asyncio.Task[None]) -> None:
        queue.put_nowait(None if task.cancelled() else task.exception())

    tasks = [asyncio.create_task(read(number, stream)) for number, stream in enumerate(streams)]
    for task in tasks:
        task.add_done_callback(ended)
    num_open = len(tasks)
    try:
        while num_open:
            entries = [await queue.get()]
            while not queue.empty():
                entries.append(queue.get_nowait())
            if items := [entry for entry in entries if isinstance(entry, tuple)]:
                yield items
            for entry in entries:
                if isinstance(entry, BaseException):
                    raise entry
            num_open -= sum(entry is None for entry in entries)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
