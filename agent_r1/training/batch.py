"""From scored rollouts to what a learner needs: samples, the step table, and the log-probs the engine gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agent_r1.algorithms import StepTable
from agent_r1.rewards import step_rewards
from agent_r1.training.rows import Sample
from agent_r1.types import Group, Trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class Experience:
    """The valid trajectories of a batch. Failed rollouts are not in it."""

    trajectories: tuple[Trajectory, ...]
    """In the table's order."""
    samples: tuple[Sample, ...]
    """One per step, in the table's order."""
    table: StepTable
    """Rewards and structure; no values yet."""
    rollout_logprobs_N: Tensor
    """The engine's log-probabilities of the action tokens."""


def gather_experience(groups: Sequence[Group], *, process_weight: float) -> Experience:
    """The batch of a list of groups."""
    trajectories = tuple(trajectory for group in groups for trajectory in group.valid if trajectory.steps)
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    rewards = [reward for t in trajectories for reward in step_rewards(t, process_weight=process_weight)]
    owners = [index for index, trajectory in enumerate(trajectories) for _ in trajectory.steps]
    table = StepTable(
        rewards_S=torch.tensor(rewards, dtype=torch.float64),
        lengths_S=torch.tensor([len(step.action_ids) for step in steps], dtype=torch.long),
        trajectory_S=torch.tensor(owners, dtype=torch.long),
        group_R=torch.tensor([trajectory.group_id for trajectory in trajectories], dtype=torch.long),
        truncated_R=torch.tensor(
            [trajectory.stop_reason.is_truncation for trajectory in trajectories], dtype=torch.bool
        ),
    )
    return Experience(
        trajectories=trajectories,
        samples=tuple(Sample.of_step(step.prompt_ids, step.action_ids) for step in steps),
        table=table,
        rollout_logprobs_N=torch.tensor([logprob for step in steps for logprob in step.rollout_logprobs]),
    )
