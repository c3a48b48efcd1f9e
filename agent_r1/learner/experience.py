"""Experience: scored rollouts as samples, a step table and the engine's log-probs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from agent_r1.algorithms import StepTable
from agent_r1.learner.packing.samples import Sample
from agent_r1.rewards import RewardShaping, ShapedRewards
from agent_r1.types import Group, Task, TokenIds, Trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class Experience:
    """The valid trajectories of a batch. Failed rollouts are not in it."""

    trajectories: tuple[Trajectory, ...]
    """In the table's order."""
    samples: tuple[Sample, ...]
    """One per step, in the table's order: what the policy reads."""
    critic_samples: tuple[Sample, ...]
    """One per step, in the table's order: what the critic reads, which may be more."""
    cut_states: Mapping[int, TokenIds]
    """By trajectory: the state in which a bootstrapped one was truncated, as the critic sees it. Others are scored."""
    table: StepTable
    """Rewards and structure; no values yet."""
    rollout_logprobs_N: Tensor
    """The engine's log-probabilities of the action tokens."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The parts of the reward."""


class CriticView:
    """What a critic sees before a step's tokens: privileged text that the policy never sees, or nothing.

    `ground_truth` is the row's; `observation` is what the environment puts into `Observation.privileged`.
    """

    def __init__(self, source: str | None, encode: Callable[[str], TokenIds], *, max_tokens: int | None = None) -> None:
        self._source = source
        self._encode = encode
        self._max_tokens = max_tokens

    def prefix(self, task: Task, privileged: str | None, length: int) -> TokenIds:
        """The ids that precede a row of `length` tokens, cut to what fits into a micro-batch."""
        if self._source is None:
            return ()
        text = task.ground_truth if self._source == "ground_truth" else privileged
        if text is None or text == "":
            return ()
        prefix = self._encode(f"{text}\n")
        return prefix if self._max_tokens is None else prefix[: max(0, self._max_tokens - length)]


def gather_experience(groups: Sequence[Group], shaping: RewardShaping, view: CriticView) -> Experience:
    """The experience of a batch: the learnable trajectories of its groups, in order."""
    shaped = shaping(groups)
    members = [(group, trajectory) for group in groups for trajectory in group.learnable]
    trajectories = tuple(trajectory for _, trajectory in members)
    table = _table(trajectories, shaped, with_greedy=any(group.greedy for group in groups))
    steps = [(group.task, step) for group, trajectory in members for step in trajectory.steps]
    samples = tuple(Sample.of_step(step.prompt_ids, step.action_ids) for _, step in steps)
    prefixes = [
        view.prefix(task, step.observation.privileged, len(sample))
        for (task, step), sample in zip(steps, samples, strict=True)
    ]
    return Experience(
        trajectories=trajectories,
        samples=samples,
        critic_samples=tuple(sample.with_prefix(prefix) for sample, prefix in zip(samples, prefixes, strict=True)),
        cut_states={
            index: view.prefix(group.task, trajectory.next_privileged, len(trajectory.next_prompt_ids))
            + trajectory.next_prompt_ids
            for index, (group, trajectory) in enumerate(members)
            if trajectory.next_prompt_ids and shaping.is_bootstrapped(trajectory)
        },
        table=_with_branches(table, trajectories, shaping),
        rollout_logprobs_N=torch.tensor([logprob for _, step in steps for logprob in step.rollout_logprobs]),
        metrics=shaped.metrics,
    )


def _table(trajectories: Sequence[Trajectory], shaped: ShapedRewards, *, with_greedy: bool) -> StepTable:
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    owners = [index for index, trajectory in enumerate(trajectories) for _ in trajectory.steps]
    greedy = [shaped.greedy_returns.get(trajectory.group_id, float("nan")) for trajectory in trajectories]
    return StepTable(
        rewards_S=torch.tensor([reward for rewards in shaped.steps for reward in rewards], dtype=torch.float64),
        lengths_S=torch.tensor([len(step.action_ids) for step in steps], dtype=torch.long),
        trajectory_S=torch.tensor(owners, dtype=torch.long),
        group_R=torch.tensor([trajectory.group_id for trajectory in trajectories], dtype=torch.long),
        greedy_returns_R=torch.tensor(greedy, dtype=torch.float64) if with_greedy else None,
        observations_S=tuple(step.observation for step in steps),
    )


def _with_branches(table: StepTable, trajectories: Sequence[Trajectory], shaping: RewardShaping) -> StepTable:
    """The table with the branches of its trajectories; unchanged when none has any.

    Steps (0), (1, continues 0), (2, continues 0) with an outcome of 1: parents (-1, 0, 0). The table's rewards have the
    outcome on the last step, step 2; step 1 ends a branch too, so the rewards of branches are (0, 1, 0).
    """
    if not any(step.parent is not None for trajectory in trajectories for step in trajectory.steps):
        return table
    parents: list[int] = []
    rewards: list[float] = []
    for trajectory in trajectories:
        first, outcome = len(parents), 0.0 if shaping.is_bootstrapped(trajectory) else trajectory.outcome_reward
        steps = trajectory.parents
        continued = {*steps, len(steps) - 1}  # the outcome is on the last step already
        parents += [first + parent if parent >= 0 else -1 for parent in steps]
        rewards += [0.0 if index in continued else outcome for index in range(len(steps))]
    return replace(
        table,
        parent_S=torch.tensor(parents, dtype=torch.long),
        branch_rewards_S=torch.tensor(rewards, dtype=table.rewards_S.dtype),
    )
