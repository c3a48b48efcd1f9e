"""`RemoteRollout`: a `Rollout` whose episodes run in worker processes, on this machine or others.

Groups, seeds, refills, limits and the circuit breaker are those of `Rollout`, in the driver; only `roll_out_member` is
sent away. Workers ask the driver's engine for completions, so the engine batches the episodes of all workers, and the
same seed gives the same rollouts as in one process.

A worker that dies, or does not answer, is replaced; its rollouts are made again, with the same seeds, by other workers.
"""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from agent_r1.errors import AgentR1Error, EpisodeError, WorkersError
from agent_r1.rollout.group_plans import Member
from agent_r1.rollout.runner import Rollout
from agent_r1.rollout.workers.book import WorkBook
from agent_r1.rollout.workers.cluster import Cluster, WorkerHandle, WorkerLostError
from agent_r1.rollout.workers.connection import Connection
from agent_r1.rollout.workers.messages import (
    CancelRequest,
    CancelRollout,
    ClockChanged,
    EngineRequest,
    FromWorker,
    RolloutFinished,
    RolloutRaised,
    StartFailure,
    StartRollout,
)
from agent_r1.types import StopReason, Task, Trajectory

_RESTART_SECONDS = 0.5
"""Pause before a lost worker is replaced; it doubles with every loss in a row."""

_GATHER_SECONDS = 20.0
"""How long the first worker waits for the others before a run begins."""

_GRACE_SECONDS = 10.0
"""A driver that was busy reads what has arrived for this long before it declares a silent worker lost."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLimits:
    """How many workers there are, and how much may go wrong with them."""

    num_workers: int
    start_seconds: float
    """The run ends when no worker could be started for this long."""
    max_losses: int
    """A rollout that was lost with its worker this often fails."""
    section: str
    """The section of the configuration that says so, for messages."""


class RemoteRollout(Rollout):
    """Runs tasks in groups, in the workers of a cluster. `play` runs in this process."""

    def __init__(
        self, *, cluster: Cluster, settings: WorkerLimits, announce: Callable[[str], None], **rollout: Any
    ) -> None:
        """The further arguments are those of `Rollout`. `announce` gets a line for every worker that is lost."""
        super().__init__(**rollout)
        self._cluster = cluster
        self._settings = settings
        self._announce = announce
        share = -(-self.limits.concurrency // settings.num_workers)
        self._book = WorkBook(share=share, max_losses=settings.max_losses)
        self._connections: dict[int, Connection] = {}
        self._waiting: dict[int, asyncio.Future[Trajectory]] = {}
        self._starts: dict[int, StartRollout] = {}
        self._num_rollouts = 0
        self._num_started = 0
        self._counts: Counter[str] = Counter()
        self._failure: AgentR1Error | None = None
        self._changed = asyncio.Event()
        self._clock_is_stopped = False

    # --- what a run calls ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Connect to the cluster and start the workers; at the end they are stopped.

        Entered when all are ready, or some seconds after the first: others join when the cluster has room for them.
        """
        self._failure = None
        serving: list[asyncio.Task[None]] = []
        try:
            self._cluster.open()
            places = range(self._settings.num_workers)
            serving = [asyncio.create_task(self._serve(place), name=f"worker {place}") for place in places]
            serving.append(asyncio.create_task(self._watch(), name="workers"))
            await self._wait_for_workers(1)
            with suppress(TimeoutError):
                async with asyncio.timeout(_GATHER_SECONDS):
                    await self._wait_for_workers(self._settings.num_workers)
            if self._failure is not None:
                raise self._failure
            yield
        finally:
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
            self._cluster.close()

    async def roll_out_member(self, task: Task, group_id: int, member: Member, seed: int) -> Trajectory:
        """One rollout, with its retries, in a worker."""
        if self._failure is not None:
            raise self._failure
        number = self._num_rollouts = self._num_rollouts + 1
        self._starts[number] = StartRollout(number=number, task=task, group_id=group_id, member=member, seed=seed)
        future: asyncio.Future[Trajectory] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._book.add(number)
        self._assign()
        try:
            return await future
        except asyncio.CancelledError:
            worker = self._book.withdraw(number)
            if worker in self._connections:
                self._connections[worker].send(CancelRollout(number=number))
                self._assign()
            raise
        finally:
            del self._waiting[number], self._starts[number]

    @contextmanager
    def clock_stopped(self) -> Iterator[None]:
        """Inside, the deadlines of the episodes of all workers do not come nearer."""
        with super().clock_stopped():
            self._set_clock(is_stopped=True)
            try:
                yield
            finally:
                self._set_clock(is_stopped=False)

    def take_counts(self) -> dict[str, float]:
        """Workers that are ready, and what was lost since the last call."""
        counts, self._counts = self._counts, Counter()
        return {
            "perf/workers": float(self._book.num_workers),
            "error/lost_workers": float(counts["workers"]),
            "error/lost_rollouts": float(counts["rollouts"]),
        }

    def _set_clock(self, *, is_stopped: bool) -> None:
        self._clock_is_stopped = is_stopped
        for connection in self._connections.values():
            connection.send(ClockChanged(is_stopped=is_stopped))
            connection.flush()  # now: the event loop may be blocked until the clock runs again

    async def _wait_for_workers(self, count: int) -> None:
        while len(self._connections) < count and self._failure is None:
            self._changed.clear()
            await self._changed.wait()

    # --- workers ---------------------------------------------------------------------------------------------------

    async def _serve(self, place: int) -> None:
        """Keep one worker alive: start it, read what it sends, replace it when it is lost."""
        losses = 0
        while self._failure is None:
            worker = self._num_started = self._num_started + 1
            handle = self._cluster.new_worker()
            try:
                is_ready = await self._start(worker, handle)
                while is_ready:
                    if self._read_all(worker, await self._poll(handle)):
                        losses = 0
            except WorkerLostError as lost:
                losses += 1
                self._lose(worker, str(lost))
                if losses >= 2 * self._settings.max_losses:  # more often than one rollout alone can be the cause
                    self._fail(
                        WorkersError(
                            f"a rollout worker was lost {losses} times in a row before it finished a rollout, so the "
                            f"run stops; the last time: {lost}. Fix what kills it (memory, a crash in a tool or an "
                            "environment) and run the same command again"
                        )
                    )
            finally:
                self._book.lose(worker)
                connection = self._connections.pop(worker, None)
                if connection is not None:
                    connection.close()
                await handle.stop()
            if self._failure is None:
                await asyncio.sleep(_RESTART_SECONDS * 2 ** (losses - 1))

    async def _start(self, worker: int, handle: WorkerHandle) -> bool:
        info = await handle.start()
        if isinstance(info, StartFailure):
            self._fail(WorkersError(f"a rollout worker cannot start: {info.error}"))
            return False
        connection = self._connections[worker] = Connection(handle, self.engine, self._fail, self.renderer.processor)
        if self._clock_is_stopped:
            connection.send(ClockChanged(is_stopped=True))
        self._book.add_worker(worker)
        self._assign()
        self._changed.set()
        return True

    async def _poll(self, handle: WorkerHandle) -> list[FromWorker]:
        """What a worker sends. One whose event loop is blocked for longer than an episode may take is lost."""
        polling = asyncio.ensure_future(handle.poll())
        try:
            seconds, end = self.limits.deadline_seconds, self._clock() + self.limits.deadline_seconds
            while not polling.done() and (remaining := end - self._clock()) > 0:
                await asyncio.wait({polling}, timeout=remaining)
            if not polling.done():
                await asyncio.wait({polling}, timeout=_GRACE_SECONDS)
            if not polling.done():
                raise WorkerLostError(
                    f"it did not answer for {seconds:g} s (rollout.deadline_seconds): something in it blocks its event "
                    "loop, such as a tool or an environment that never awaits"
                )
            return polling.result()
        finally:
            polling.cancel()

    def _read_all(self, worker: int, messages: list[FromWorker]) -> bool:
        """Whether a rollout was finished."""
        connection, has_finished = self._connections[worker], False
        for message in messages:
            match message:
                case EngineRequest():
                    connection.request(message)
                case CancelRequest():
                    connection.cancel_request(message.number)
                case RolloutFinished() | RolloutRaised():
                    if isinstance(message, RolloutFinished):
                        connection.take_pictures(message.pictures)
                    if self._book.finish(worker, message.number):
                        has_finished = True
                        self._resolve(message)
        if has_finished:
            self._assign()
        return has_finished

    def _resolve(self, message: RolloutFinished | RolloutRaised) -> None:
        future = self._waiting[message.number]
        if future.done():
            return
        if isinstance(message, RolloutRaised):
            future.set_exception(WorkersError(f"a rollout worker failed: {message.error}"))
            return
        try:
            trajectory: Trajectory = pickle.loads(message.trajectory)
        except (ImportError, AttributeError, pickle.UnpicklingError) as error:
            future.set_exception(WorkersError(f"what a rollout worker sent cannot be read here: {error}"))
        else:
            future.set_result(trajectory)

    def _assign(self) -> None:
        for worker, number in self._book.assign():
            self._connections[worker].send(self._starts[number])

    def _lose(self, worker: int, reason: str) -> None:
        """Give the rollouts of a lost worker to others; those that were lost too often fail."""
        is_known = worker in self._connections
        lost = self._book.lose(worker)
        self._counts["workers"] += 1
        self._counts["rollouts"] += len(lost.requeued) + len(lost.given_up)
        self._announce(
            f"a rollout worker {'was lost' if is_known else 'could not be started'} ({reason}); "
            f"{len(lost.requeued)} of its rollouts are made again by others"
            + (f", {len(lost.given_up)} were lost too often and count as failed" if lost.given_up else "")
        )
        for number in lost.given_up:
            future, start = self._waiting[number], self._starts[number]
            if not future.done():
                future.set_result(_lost_trajectory(start, reason, self._settings))
        self._assign()

    def _fail(self, failure: AgentR1Error) -> None:
        """End the run: every rollout, also those to come, raises this."""
        self._failure = self._failure or failure
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._failure)
        self._changed.set()

    async def _watch(self) -> None:
        """End the run when there has been no worker for too long."""
        seconds = self._settings.start_seconds
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self._failure is None:
            await asyncio.sleep(min(1.0, seconds / 4))
            if self._connections:
                end = loop.time() + seconds
            elif loop.time() > end:
                self._fail(
                    WorkersError(
                        f"no rollout worker could be started for {seconds:g} s "
                        f"({self._settings.section}.start_seconds); {self._cluster.explain_shortage()}"
                    )
                )


def _lost_trajectory(start: StartRollout, reason: str, settings: WorkerLimits) -> Trajectory:
    """The failed trajectory of a rollout that was lost too often."""
    error = EpisodeError(
        StopReason.FLOW_ERROR,
        f"task '{start.task.task_id}'",
        f"its worker was lost {settings.max_losses} times while it ran ({settings.section}.max_losses), the last time: "
        f"{reason}",
    )
    return Trajectory(
        task_id=start.task.task_id,
        group_id=start.group_id,
        member=start.member.number,
        data_source=start.task.data_source,
        steps=(),
        outcome_reward=0.0,
        stop_reason=error.reason,
        error=str(error),
    )
