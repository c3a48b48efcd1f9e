"""A cluster whose workers run on the event loop of the test: everything of `rollout.workers` but processes and Ray."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from agent_r1.rollout import Rollout
from agent_r1.rollout.workers import ProxyEngine, RolloutWorker, WorkerLimits, WorkerLostError
from agent_r1.rollout.workers.messages import FromWorker, StartFailure, StartRollout, ToWorker, WorkerInfo

WORKER_LIMITS = WorkerLimits(num_workers=2, start_seconds=180.0, max_losses=3, section="rollout.ray")

MakeRollout = Callable[[ProxyEngine], Rollout]

_makers: dict[int, MakeRollout] = {}


@dataclass(frozen=True)
class Setup:
    """Travels as a number; the worker finds the function in this process."""

    maker: int
    context_length: int = 4096
    takes_messages: bool = False

    def pickled(self, dumps: Callable[[Any], bytes]) -> bytes:
        return dumps(self)

    @asynccontextmanager
    async def rollout(self, engine: ProxyEngine) -> AsyncIterator[Rollout]:
        yield _makers[self.maker](engine)


class LoopWorker:
    """A worker that can be killed, or made to hang, at any moment. Messages are copied, as on their way."""

    def __init__(self, setup: Setup) -> None:
        self._worker = RolloutWorker(setup.pickled(pickle.dumps))
        self._died = asyncio.Event()
        self.is_blocked = False
        """Answers no poll, like a process whose event loop is blocked."""
        self.is_ready = False
        self._tasks: dict[int, str] = {}
        self.most_held = 0
        """The most rollouts that it had at once."""

    @property
    def task_ids(self) -> set[str]:
        """The tasks of the rollouts that it runs."""
        return {self._tasks[number] for number in self._worker._running}

    def kill(self) -> None:
        self._died.set()
        for running in self._worker._running.values():
            running.cancel()

    async def start(self) -> WorkerInfo | StartFailure:
        info = await self._worker.start()
        self.is_ready = True
        return info

    def deliver(self, batch: int, messages: Sequence[ToWorker]) -> None:
        if not self._died.is_set():
            copied = pickle.loads(pickle.dumps(messages))
            asyncio.get_running_loop().create_task(self._deliver(batch, copied))

    async def _deliver(self, batch: int, messages: Sequence[ToWorker]) -> None:
        self._tasks |= {
            message.number: message.task.task_id for message in messages if isinstance(message, StartRollout)
        }
        await self._worker.deliver(batch, messages)
        self.most_held = max(self.most_held, len(self._worker._running))

    async def poll(self) -> list[FromWorker]:
        polling = asyncio.ensure_future(self._worker.poll())
        dying = asyncio.ensure_future(self._died.wait())
        try:
            await asyncio.wait({polling, dying}, return_when=asyncio.FIRST_COMPLETED)
            while self.is_blocked:
                await asyncio.sleep(1)
            if self._died.is_set():
                raise WorkerLostError("killed by the test")
            return pickle.loads(pickle.dumps(polling.result()))
        finally:
            polling.cancel()
            dying.cancel()

    async def stop(self) -> None:
        self.kill()
        await self._worker.close()


class LoopCluster:
    """Starts `LoopWorker`s."""

    def __init__(self, make: MakeRollout) -> None:
        maker = len(_makers)
        _makers[maker] = make
        self.setup = Setup(maker)
        self.workers: list[LoopWorker] = []
        self.is_open = False

    @property
    def alive(self) -> list[LoopWorker]:
        return [worker for worker in self.workers if worker.is_ready and not worker._died.is_set()]

    def open(self) -> None:
        self.is_open = True

    def new_worker(self) -> LoopWorker:
        worker = LoopWorker(self.setup)
        self.workers.append(worker)
        return worker

    def explain_shortage(self) -> str:
        return "the test gives it no room"

    def close(self) -> None:
        self.is_open = False
