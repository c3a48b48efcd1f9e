"""Rollout: groups of episodes, retries, deadlines, the recorder."""

from agent_r1.rollout.runner import Rollout, RolloutLimits, choose_env, env_of_row, refuse_total_failure
from agent_r1.runs.trajectories import read_trajectories, write_trajectories

__all__ = [
    "Rollout",
    "RolloutLimits",
    "choose_env",
    "env_of_row",
    "read_trajectories",
    "refuse_total_failure",
    "write_trajectories",
]
