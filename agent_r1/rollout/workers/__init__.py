"""Rollouts in worker processes, on this machine (`rollout.workers=processes`) or on a Ray cluster (`ray`)."""

from __future__ import annotations

from pathlib import Path

from agent_r1.config import Config
from agent_r1.rollout.workers.check import check_workers
from agent_r1.rollout.workers.cluster import Cluster, WorkerHandle, WorkerLostError
from agent_r1.rollout.workers.process_cluster import ProcessCluster, default_num_workers
from agent_r1.rollout.workers.proxy_engine import ProxyEngine
from agent_r1.rollout.workers.remote import RemoteRollout, WorkerLimits
from agent_r1.rollout.workers.worker import RolloutWorker, WorkerSetup, recipe_copy

__all__ = [
    "Cluster",
    "ProxyEngine",
    "RemoteRollout",
    "RolloutWorker",
    "WorkerHandle",
    "WorkerLimits",
    "WorkerLostError",
    "WorkerSetup",
    "check_workers",
    "make_cluster",
    "recipe_copy",
]


def make_cluster(config: Config, setup: WorkerSetup) -> tuple[Cluster, WorkerLimits]:
    """What runs the workers that `rollout.workers` names. Ray is imported here."""
    settings = config.rollout.processes if config.rollout.workers == "processes" else config.rollout.ray
    limits = WorkerLimits(
        num_workers=settings.num_workers or default_num_workers(),
        start_seconds=settings.start_seconds,
        max_losses=settings.max_losses,
        section=f"rollout.{config.rollout.workers}",
    )
    if config.rollout.workers == "processes":
        return ProcessCluster(setup, num_workers=limits.num_workers), limits
    from agent_r1.rollout.workers.ray_cluster import RayCluster

    return RayCluster(config.rollout.ray, setup, recipe=None if config.recipe is None else Path(config.recipe)), limits
