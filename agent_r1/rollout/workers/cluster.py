"""`Cluster`: what the driver needs of whatever runs its workers. `ray_cluster` is the one that runs use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agent_r1.rollout.workers.messages import FromWorker, StartFailure, ToWorker, WorkerInfo


class WorkerLostError(Exception):
    """A worker died or cannot be reached. The message says why; it never leaves this package."""


class WorkerHandle(Protocol):
    """One worker, from its start to its end. A worker that was lost does not come back under the same handle."""

    async def start(self) -> WorkerInfo | StartFailure:
        """Wait until the worker is ready, for as long as the cluster has no room for it. Raises `WorkerLostError`."""
        ...

    def deliver(self, batch: int, messages: Sequence[ToWorker]) -> None:
        """Send a batch without waiting. A batch that is lost shows in `poll`: the worker is lost."""
        ...

    async def poll(self) -> list[FromWorker]:
        """What the worker sends. Raises `WorkerLostError`."""
        ...

    async def stop(self) -> None:
        """End the worker, whatever state it is in."""
        ...


class Cluster(Protocol):
    """Where workers run."""

    def open(self) -> None:
        """Connect. Raises `WorkersError` when that is impossible."""
        ...

    def new_worker(self) -> WorkerHandle:
        """A worker that is not started yet."""
        ...

    def explain_shortage(self) -> str:
        """Why workers may not start: what they need and what the cluster has."""
        ...

    def close(self) -> None:
        """Disconnect; a cluster that was started for the run ends."""
        ...
