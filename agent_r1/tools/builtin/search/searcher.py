"""`Searcher`: answers requests off the event loop, in a thread at first and in worker processes under load.

A thread shares the interpreter with the event loop, which is busy during a rollout: each of its many short steps then
waits for its turn. A worker process has an interpreter of its own; the folder of the index is memory-mapped, so all of
them share its scores and passages. Where the answer is computed changes nothing in it.

A worker that dies or hangs is replaced and what it was asked is asked again: of another worker, at last in a thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agent_r1.tools.builtin.search.answers import (
    SearchAnswer,
    SearchRequest,
    answer_requests,
    index_version,
    shared_index,
)
from agent_r1.tools.builtin.search.cache import AnswerCache, SearchKey
from agent_r1.tools.cores import ROLLOUT_WORKERS, cores_of_worker
from agent_r1.tools.workers.threads import call_off_loop

if TYPE_CHECKING:
    from agent_r1.tools.workers.pool import WorkerPool

MAX_DEFAULT_WORKERS = 8
WORKER_SECONDS = 50.0
"""A worker that takes longer, which includes opening the index, is killed."""
_WORKER_ATTEMPTS = 2
_BUSY_SECONDS, _BUSY_SHARE = 0.25, 0.1
"""Workers start when threads have searched for this long, not counting this share of the time that has passed."""

_one_at_a_time = threading.Lock()


def default_workers() -> int:
    """Worker processes unless a number is given: one per core that this process may use, at most 8.

    One of several rollout workers searches itself, in a thread, when its share is a single core.
    """
    cores = cores_of_worker()
    return 0 if cores == 1 and ROLLOUT_WORKERS in os.environ else min(cores, MAX_DEFAULT_WORKERS)


class Searcher:
    """Answers requests for an event loop.

    Args:
        num_workers: Worker processes, started with the first request; 0: none, all searches run in a thread; None:
            `default_workers`, started when threads are busy.
    """

    def __init__(self, num_workers: int | None = None) -> None:
        self.num_workers = default_workers() if num_workers is None else num_workers
        self._waits_for_load = num_workers is None
        self._pool: WorkerPool | None = None
        self._num_open = 0
        self._num_asked = 0
        self._starting: set[asyncio.Task[None]] = set()
        self._in_flight: dict[SearchKey, asyncio.Future[SearchAnswer | None]] = {}
        self._cache = AnswerCache()
        self._seconds_in_threads, self._last_time = 0.0, time.monotonic()

    async def answer(self, folder: Path, requests: Sequence[SearchRequest]) -> list[SearchAnswer]:
        """The answers to requests, in their order. Equal requests are searched for once, also while the first of them
        is under way."""
        version = index_version(folder)
        keys = [SearchKey(folder, version, request) for request in requests]
        answers: dict[SearchKey, SearchAnswer] = {}
        while missing := [key for key in dict.fromkeys(keys) if key not in answers]:
            cached = {key: answer for key in missing if (answer := self._cache.get(key)) is not None}
            answers.update(cached)
            others = {key: self._in_flight[key] for key in missing if key not in cached and key in self._in_flight}
            new = [key for key in missing if key not in cached and key not in others]
            if new:
                answers.update(await self._search(folder, new))
            for key, future in others.items():
                if (answer := await asyncio.shield(future)) is not None:
                    answers[key] = answer
        return [answers[key] for key in keys]

    async def _search(self, folder: Path, keys: Sequence[SearchKey]) -> dict[SearchKey, SearchAnswer]:
        """Search for requests that no one searches for yet; the others who ask for the same get the answer too."""
        loop = asyncio.get_running_loop()
        self._in_flight.update({key: loop.create_future() for key in keys})
        answer_of: dict[SearchKey, SearchAnswer] = {}
        try:
            answers = await self._run(str(folder), [key.request for key in keys])
            answer_of = dict(zip(keys, answers, strict=True))
            for key, answer in answer_of.items():
                self._cache.keep(key, answer)
            return answer_of
        finally:
            for key in keys:  # without an answer, because this search failed or was cancelled, the others search again
                self._in_flight.pop(key).set_result(answer_of.get(key))

    async def _run(self, folder: str, requests: list[SearchRequest]) -> list[SearchAnswer]:
        if self.num_workers and self._pool is None and (not self._waits_for_load or self._threads_are_busy()):
            self._start_workers(folder)
        if self._pool is not None and (self._num_asked < self._num_open or self._num_open == self.num_workers):
            answers = await self._ask_workers(self._pool, folder, requests)
            if answers is not None:
                return answers
        return await call_off_loop(self._run_here, folder, requests)  # type: ignore[no-any-return]

    def _run_here(self, folder: str, requests: list[SearchRequest]) -> list[SearchAnswer]:
        """Search in this thread. Several at once would only share the interpreter."""
        with _one_at_a_time:
            shared_index(Path(folder))
            started = time.monotonic()
            answers = answer_requests(folder, requests)
            self._seconds_in_threads += time.monotonic() - started
            return answers

    def _threads_are_busy(self) -> bool:
        now = time.monotonic()
        idle = _BUSY_SHARE * (now - self._last_time)
        self._seconds_in_threads, self._last_time = max(0.0, self._seconds_in_threads - idle), now
        return self._seconds_in_threads > _BUSY_SECONDS

    def _start_workers(self, folder: str) -> None:
        """Start the workers and have each open the index. Threads search until one has."""
        try:
            from agent_r1.tools.workers.pool import WorkerPool
        except ImportError:  # Windows
            self.num_workers = 0
            return
        self._pool = WorkerPool(self.num_workers)
        for _ in range(self.num_workers):
            task = asyncio.get_running_loop().create_task(self._open_in_worker(self._pool, folder))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _open_in_worker(self, pool: WorkerPool, folder: str) -> None:
        await self._ask_workers(pool, folder, [])
        if pool is self._pool:  # also after a failure: the worker was replaced
            self._num_open += 1

    async def _ask_workers(
        self, pool: WorkerPool, folder: str, requests: list[SearchRequest]
    ) -> list[SearchAnswer] | None:
        """The answers of a worker; None: it has to be done here, where what goes wrong is raised as it is."""
        from agent_r1.tools.workers.pool import WorkerDiedError, WorkerRaisedError, WorkerTimeoutError

        self._num_asked += 1
        try:
            for _ in range(_WORKER_ATTEMPTS):
                with suppress(WorkerDiedError):
                    answers = await pool.call(answer_requests, folder, requests, timeout=WORKER_SECONDS)
                    return [SearchAnswer(*answer) for answer in answers]
        except (WorkerRaisedError, WorkerTimeoutError):
            return None
        except OSError as error:
            self._give_up_workers(pool, error)
        except RuntimeError:
            if pool is self._pool:  # else it was closed
                raise
        finally:
            self._num_asked -= 1
        return None

    def _give_up_workers(self, pool: WorkerPool, error: OSError) -> None:
        if pool is self._pool:
            self._pool, self.num_workers = None, 0
            warnings.warn(f"search has no worker processes and is slower: they cannot start ({error})", stacklevel=2)

    async def wait_until_started(self) -> None:
        """Wait until every worker that was started has opened the index."""
        await asyncio.gather(*self._starting)

    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [] if self._pool is None else self._pool.pids()

    async def close(self) -> None:
        """End the workers. What they are asked is answered in threads; a later request may start them again."""
        pool, self._pool, self._num_open = self._pool, None, 0
        if pool is not None:
            await pool.close()
            await asyncio.gather(*self._starting, return_exceptions=True)


_searchers_of_loop: dict[asyncio.AbstractEventLoop, dict[int | None, Searcher]] = {}


def searcher_of_loop(num_workers: int | None) -> Searcher:
    """The searcher of the running event loop with this number of workers. All tools share it."""
    loop = asyncio.get_running_loop()
    if loop not in _searchers_of_loop:
        for closed in [other for other in _searchers_of_loop if other.is_closed()]:
            del _searchers_of_loop[closed]  # with the last reference to a pool its workers end
        _searchers_of_loop[loop] = {}
    return _searchers_of_loop[loop].setdefault(num_workers, Searcher(num_workers))


async def close_searchers() -> None:
    """End the worker processes of the running event loop's searchers."""
    for searcher in _searchers_of_loop.pop(asyncio.get_running_loop(), {}).values():
        await searcher.close()
