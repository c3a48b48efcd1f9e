"""`map_in_workers`: the results of a function for many items, in order, from as many processes as there are cores.

    async for question, row in map_in_workers(demonstration, questions):
        ...

It is for scripts that make data. The results do not depend on the number of processes, as long as the function depends
on its item alone. Where one process is all there is (one core; Windows), the function is called in this one.
"""

from __future__ import annotations

import asyncio
import pickle
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agent_r1.registry import recipe_folder
from agent_r1.tools.cores import num_cores
from agent_r1.tools.workers.function_ref import FunctionRef

if TYPE_CHECKING:
    from agent_r1.tools.workers.pool import WorkerPool

Item = TypeVar("Item")
Chunk = Sequence[Item]

CHUNK_SIZE = 8
"""Items per call of a worker: each call takes this process some time, too."""
MAX_PROCESSES = 16
"""More would wait for this process, which uses the results."""
CALL_SECONDS = 3600.0
"""A worker that needs longer for a chunk hangs."""


async def map_in_workers(
    function: Callable[[Item], Any], items: Iterable[Item], *, num_processes: int | None = None
) -> AsyncGenerator[tuple[Item, Any], None]:
    """Every item with `function(item)`, which is plain data, in the order of the items.

    The function is one that a process can find by its name (`FunctionRef`). `items` are read a few chunks ahead of the
    result that is waited for. When the caller stops early, is cancelled or interrupted, the processes are killed.
    """
    pool = _pool(min(num_processes or num_cores(), MAX_PROCESSES))
    if pool is None:
        for item in items:
            await asyncio.sleep(0)  # Ctrl-C cancels a coroutine only where it waits
            yield item, function(item)
        return
    reference = FunctionRef.of(function)
    calls: deque[tuple[Chunk[Item], asyncio.Task[list[Any]]]] = deque()
    chunks = _chunks(items)
    try:
        while True:
            while len(calls) < 2 * pool.size and (chunk := next(chunks, None)) is not None:
                calls.append((chunk, asyncio.create_task(_call(pool, reference, chunk))))
            if not calls:
                return
            for pair in zip(calls[0][0], await calls[0][1], strict=True):
                yield pair
            calls.popleft()
    finally:
        for _, call in calls:
            call.cancel()
        await asyncio.gather(*(call for _, call in calls), return_exceptions=True)
        await pool.close()


def _pool(num_processes: int) -> WorkerPool | None:
    """The processes; None for this one alone."""
    if num_processes < 2:
        return None
    try:
        from agent_r1.tools.workers.pool import WorkerPool
    except ImportError:  # Windows
        return None
    return WorkerPool(num_processes)


def _chunks(items: Iterable[Item]) -> Iterator[Chunk[Item]]:
    remaining = iter(items)
    while chunk := list(islice(remaining, CHUNK_SIZE)):
        yield chunk


async def _call(pool: WorkerPool, reference: FunctionRef, chunk: Chunk[Item]) -> list[Any]:
    # The items may be records of a recipe, which a worker can read once it has opened the recipe's folder.
    results: list[Any] = await pool.call(call_each, reference, pickle.dumps(chunk, protocol=5), timeout=CALL_SECONDS)
    return results


def call_each(reference: FunctionRef, chunk: bytes) -> list[Any]:
    """Called in a worker: the function's results for the items of a chunk."""
    function = reference.load()
    with recipe_folder(None if reference.folder is None else Path(reference.folder)):
        return [function(item) for item in pickle.loads(chunk)]
