"""Process rewards: what the steps themselves earned, balanced against the outcome."""

from __future__ import annotations

from agent_r1.types import Trajectory


def step_rewards(trajectory: Trajectory, *, process_weight: float) -> list[float]:
    """The reward of each step: its process reward times the weight, plus the outcome on the last step.

    Process rewards (0.1, 0.1, 0) and an outcome of 1 with weight 0.5 give [0.05, 0.05, 1.0]. A weight of 0 switches
    process rewards off.
    """
    rewards = [process_weight * step.reward for step in trajectory.steps]
    if rewards:
        rewards[-1] += trajectory.outcome_reward
    return rewards
