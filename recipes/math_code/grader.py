"""`Grader`: verdicts on answers from a pool of processes that are killed when they take too long.

    await Grader.here().is_right(r"\frac{1}{2}", "0.5")

Pairs that wait at the same time are graded in batches, and equal pairs once: members of a group often agree. A batch
whose process hangs or dies is graded again pair by pair; a pair that hangs or dies alone is wrong.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable

from agent_r1.console import progress_counter
from agent_r1.errors import AgentR1Error
from agent_r1.tools import num_cores
from agent_r1.tools.workers.pool import WorkerDiedError, WorkerPool, WorkerRaisedError, WorkerTimeoutError

from .grading import is_integer, quick_verdict, verdicts

Pair = tuple[str, str]

BATCH_SIZE = 16
MAX_SECONDS = 120.0
"""For a batch, on a machine however busy; `grading.CPU_SECONDS` is what usually ends a pair that hangs."""
MEMORY_BYTES = 2 << 30
MAX_REMEMBERED = 100_000

_FAILURES = (WorkerTimeoutError, WorkerDiedError, WorkerRaisedError)
_of_thread = threading.local()
_of_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Grader] = weakref.WeakKeyDictionary()


def num_processes() -> int:
    """Half of the cores, at most eight: the others run programs."""
    return max(1, min(8, num_cores() // 2))


class Grader:
    """Grades on one event loop. Its processes are shared by the loops of a thread, one after the other."""

    def __init__(self, pool: WorkerPool) -> None:
        self.num_killed = 0
        """Pairs that hung or crashed alone."""
        self._pool = pool
        self._waiting: OrderedDict[Pair, asyncio.Future[bool]] = OrderedDict()
        self._under_way: dict[Pair, asyncio.Future[bool]] = {}
        self._known: OrderedDict[Pair, bool] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    def here(cls) -> Grader:
        """The grader of the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in _of_loop:
            if not hasattr(_of_thread, "pool"):
                _of_thread.pool = WorkerPool(num_processes(), memory_bytes=MEMORY_BYTES)
            _of_loop[loop] = cls(_of_thread.pool)
        return _of_loop[loop]

    async def is_right(self, gold: str, answer: str) -> bool:
        """Whether an answer equals the gold answer."""
        quick = quick_verdict(gold, answer)
        if quick is not None:
            return quick
        pair = (gold, answer)
        if pair in self._known:
            self._known.move_to_end(pair)
            return self._known[pair]
        future = self._waiting.get(pair) or self._under_way.get(pair)
        if future is None:
            future = self._waiting[pair] = asyncio.get_running_loop().create_future()
            if len(self._tasks) < self._pool.size:
                task = asyncio.ensure_future(self._grade_waiting())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(future)

    async def _grade_waiting(self) -> None:
        await asyncio.sleep(0)  # others of this moment join the batch
        while self._waiting:
            share = -(-len(self._waiting) // self._pool.size)
            batch = dict(self._waiting.popitem(last=False) for _ in range(min(BATCH_SIZE, share)))
            self._under_way.update(batch)
            try:
                for pair, right in zip(batch, await self._verdicts(list(batch)), strict=True):
                    self._remember(pair, right)
                    if not batch[pair].done():
                        batch[pair].set_result(right)
            except AgentR1Error as error:
                for future in batch.values():
                    future.set_exception(error)
            finally:
                for pair, future in batch.items():
                    del self._under_way[pair]
                    future.cancel()

    async def _verdicts(self, batch: list[Pair]) -> list[bool]:
        if len(batch) > 1:
            try:
                return list(await self._pool.call(verdicts, batch, timeout=MAX_SECONDS))
            except _FAILURES:
                pass
        return [await self._verdict(pair) for pair in batch]

    async def _verdict(self, pair: Pair) -> bool:
        try:
            [right] = await self._pool.call(verdicts, [pair], timeout=MAX_SECONDS)
        except _FAILURES:
            self.num_killed += 1
            return False
        return bool(right)

    def _remember(self, pair: Pair, right: bool) -> None:
        self._known[pair] = right
        if len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)


async def accepted_as_own(golds: Iterable[str]) -> dict[str, bool]:
    """For each gold answer, whether math-verify accepts it as its own. Integers need no algebra."""
    pool = WorkerPool(num_cores(), memory_bytes=MEMORY_BYTES)  # no programs run meanwhile: all cores grade
    grader, numbers = Grader(pool), itertools.count(1)
    accepted = dict.fromkeys(golds, True)
    asked = [gold for gold in accepted if not is_integer(gold)]
    with progress_counter("gold answers", len(asked)) as progress:

        async def is_accepted(gold: str) -> bool:
            # A space makes the texts differ, so that math-verify is asked.
            found = await grader.is_right(gold, f"{gold} ")
            progress("grading with math-verify", next(numbers))
            return found

        progress("grading with math-verify", 0)
        try:
            found = await asyncio.gather(*map(is_accepted, asked))
        finally:
            await pool.close()
    return accepted | dict(zip(asked, found, strict=True))
