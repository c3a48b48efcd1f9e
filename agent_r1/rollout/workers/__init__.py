"""Rollouts in worker processes, on this machine or on a Ray cluster (`rollout.workers=ray`)."""

from __future__ import annotations

from pathlib import Path

from agent_r1.config import RayConfig
from agent_r1.rollout.workers.check import check_workers
from agent_r1.rollout.workers.cluster import Cluster, WorkerHandle, WorkerLostError
from agent_r1.rollout.workers.proxy_engine import ProxyEngine
from agent_r1.rollout.workers.remote import RemoteRollout
from agent_r1.rollout.workers.worker import RolloutWorker, WorkerSetup, recipe_copy

__all__ = [
    "Cluster",
    "ProxyEngine",
    "RemoteRollout",
    "RolloutWorker",
    "WorkerHandle",
    "WorkerLostError",
    "WorkerSetup",
    "check_workers",
    "make_cluster",
    "recipe_copy",
]


def make_cluster(settings: RayConfig, setup: WorkerSetup, *, recipe: Path | None) -> Cluster:
    """The Ray cluster that the configuration names. Ray is imported here."""
    from agent_r1.rollout.workers.ray_cluster import RayCluster

    return RayCluster(settings, setup, recipe=recipe)
