"""Rollout: groups of episodes, retries, deadlines, the recorder."""

from agent_r1.rollout.collector import Collector
from agent_r1.rollout.overlapping import make_collector
from agent_r1.rollout.runner import Rollout, RolloutLimits, raise_if_all_failed

__all__ = [
    "Collector",
    "Rollout",
    "RolloutLimits",
    "make_collector",
    "raise_if_all_failed",
]
