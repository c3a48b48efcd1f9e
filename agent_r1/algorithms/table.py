"""`StepTable`: a batch of trajectories as flat arrays, the input of estimators.

Shape letters: `_N` action tokens, `_S` steps, `_R` trajectories. Steps are ordered by trajectory, tokens by step.
Failed rollouts are not in the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from agent_r1.algorithms.branches import (
    depths,
    first_tokens_after,
    mean_of_continuations,
    nearest_with_tokens,
    token_parents,
    tree_scan,
)
from agent_r1.algorithms.lazy_torch import torch
from agent_r1.algorithms.scan import next_in_segment, reverse_scan
from agent_r1.types import Observation

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class StepTable:
    """S steps of R trajectories.

    Two trajectories, the first with steps of 2 and 1 tokens, the second with one step of 3, in one group:

        StepTable(rewards_S=[.1, 1, 0], lengths_S=[2, 1, 3], trajectory_S=[0, 0, 1],
                  group_R=[0, 0])
    """

    rewards_S: Tensor
    """Process reward of the step, plus the outcome reward on the last, minus KL if that is part of the reward."""
    lengths_S: Tensor
    """Action tokens of the step."""
    trajectory_S: Tensor
    """Which trajectory the step belongs to; non-decreasing."""
    group_R: Tensor
    """Which group the trajectory belongs to."""
    token_rewards_N: Tensor | None = None
    """Rewards of single tokens beyond the step's own (a KL penalty); already part of `rewards_S`."""
    values_N: Tensor | None = None
    """The critic's value of the state before each action token."""
    bootstrap_R: Tensor | None = None
    """The value after the last step: the critic's value of the next state where a trajectory was truncated and its
    outcome left out of the rewards, 0 where it ended or was scored. None: 0 everywhere."""
    greedy_returns_R: Tensor | None = None
    """The return of the greedy rollout of the same task; NaN where there is none."""
    observations_S: tuple[Observation, ...] | None = None
    """What the model saw before each step."""
    parent_S: Tensor | None = None
    """Where episodes branch: the step that each step continues, -1 for none. None: every step continues the one before
    it in its trajectory."""
    branch_rewards_S: Tensor | None = None
    """Where episodes branch: the outcome once more, on the last step of every other branch. Each branch leads to the
    outcome, so it counts in the return-to-go of each, and once in the return of the trajectory."""

    @property
    def num_trajectories(self) -> int:
        """How many trajectories there are (R)."""
        return len(self.group_R)

    @property
    def num_tokens(self) -> int:
        """How many action tokens there are (N)."""
        return int(self.lengths_S.sum())

    @cached_property
    def step_of_token_N(self) -> Tensor:
        """The step each token belongs to."""
        return torch.repeat_interleave(torch.arange(len(self.lengths_S)), self.lengths_S)

    @cached_property
    def trajectory_of_token_N(self) -> Tensor:
        """The trajectory each token belongs to."""
        return self.trajectory_S[self.step_of_token_N]

    @property
    def first_token_S(self) -> Tensor:
        """The index of each step's first token. An empty step shares the next step's."""
        return self.lengths_S.cumsum(0) - self.lengths_S

    @property
    def first_token_N(self) -> Tensor:
        """True at the first token of each step."""
        marks = torch.zeros(self.num_tokens, dtype=torch.bool)
        marks[self.first_token_S[self.lengths_S > 0]] = True
        return marks

    @property
    def returns_R(self) -> Tensor:
        """The total reward of each trajectory.

        For the example above: [1.1, 0].
        """
        return self._sum_R(self.rewards_S)

    def returns_to_go(self, gamma: float) -> Tensor:
        """The reward from each step on, discounted once per step, with the value after the last step.

        For the example above with gamma .5: [.6, 1, 0].
        """
        return self.accumulate_S(self.td_errors_S(gamma, torch.zeros_like(self.rewards_S)), gamma)

    @property
    def task_rewards_S(self) -> Tensor:
        """`rewards_S` without the rewards of single tokens (`token_rewards_N`)."""
        if self.token_rewards_N is None:
            return self.rewards_S
        charged_S = torch.zeros_like(self.rewards_S).index_add(0, self.step_of_token_N, self.token_rewards_N)
        return self.rewards_S - charged_S

    @property
    def task_returns_R(self) -> Tensor:
        """`returns_R` without the rewards of single tokens."""
        return self._sum_R(self.task_rewards_S)

    @property
    def step_index_S(self) -> Tensor:
        """The index of each step in its branch of its trajectory, from 0: [0, 1, 0] for the example above."""
        if self.parent_S is not None:
            return depths(self.parent_S)
        num_steps_R = torch.bincount(self.trajectory_S, minlength=self.num_trajectories)
        first_R = num_steps_R.cumsum(0) - num_steps_R
        return torch.arange(len(self.trajectory_S)) - first_R[self.trajectory_S]

    def _sum_R(self, values_S: Tensor) -> Tensor:
        zeros_R = torch.zeros(self.num_trajectories, dtype=values_S.dtype)
        return zeros_R.index_add(0, self.trajectory_S, values_S)

    def rewards_to_go_S(self, gamma: float) -> Tensor:
        """The discounted rewards from each step on along its branch; where several continue it, their mean."""
        return self.accumulate_S(self._with_branches(self.rewards_S), gamma)

    def task_rewards_to_go_S(self, gamma: float) -> Tensor:
        """`rewards_to_go_S` without the rewards of single tokens."""
        return self.accumulate_S(self._with_branches(self.task_rewards_S), gamma)

    def td_errors_S(self, gamma: float, values_S: Tensor) -> Tensor:
        """The reward plus the discounted value of what follows in the branch, minus the step's own value."""
        after_S = self.after_last_R[self.trajectory_S]
        if self.parent_S is None:
            following_S = next_in_segment(values_S, self.trajectory_S, after_S)
        else:
            following_S = mean_of_continuations(values_S, self.parent_S, after_S.to(values_S.dtype))
        return self._with_branches(self.rewards_S) + gamma * following_S - values_S

    def accumulate_S(self, inputs_S: Tensor, decay: float) -> Tensor:
        """Each entry plus `decay` times what was accumulated after it in its branch."""
        if self.parent_S is None:
            return reverse_scan(inputs_S, decay, self.trajectory_S)
        return tree_scan(inputs_S, decay, self.parent_S)

    def _with_branches(self, rewards_S: Tensor) -> Tensor:
        return rewards_S if self.branch_rewards_S is None else rewards_S + self.branch_rewards_S

    def step_values_S(self) -> Tensor:
        """The critic's value before each step's first token.

        A step without tokens has the value of the step that continues it (where several do, their mean), else that of
        `after_last_R`.
        """
        values_N = _require_values(self.values_N)
        values_S = self.after_last_R[self.trajectory_S].to(values_N.dtype)
        if self.parent_S is not None:
            return self._step_values_of_branches(self.parent_S, values_N, values_S)
        owner_N = self.trajectory_of_token_N
        follows = self.first_token_S < self.num_tokens
        first = self.first_token_S.clamp(max=max(0, self.num_tokens - 1))
        if self.num_tokens:
            follows &= owner_N[first] == self.trajectory_S
            values_S = torch.where(follows, values_N[first], values_S)
        return values_S

    def _step_values_of_branches(self, parent_S: Tensor, values_N: Tensor, after_S: Tensor) -> Tensor:
        has_tokens_S = self.lengths_S > 0
        values_S = after_S.clone()
        values_S[has_tokens_S] = values_N[self.first_token_S[has_tokens_S]]
        for step in reversed((~has_tokens_S).nonzero().squeeze(1).tolist()):  # continuations come after it
            continues_S = parent_S == step
            if continues_S.any():
                values_S[step] = values_S[continues_S].mean()
        return values_S

    @property
    def after_last_R(self) -> Tensor:
        """The value after each trajectory's last step."""
        if self.bootstrap_R is None:
            return torch.zeros(self.num_trajectories, dtype=self.rewards_S.dtype)
        return self.bootstrap_R.to(self.rewards_S.dtype)

    def per_token(self) -> StepTable:
        """The same table at token granularity: every token is a step of its own.

        A step's reward falls on its last token: the example's rewards become [0, .1, 1, 0, 0, 0]. An empty step's
        reward falls on the token before it in the trajectory, else on the one after.
        """
        if self.parent_S is not None:
            return self._per_token_of_branches(self.parent_S)
        rewards_N = torch.zeros(self.num_tokens, dtype=self.rewards_S.dtype)
        step_rewards_S = self.task_rewards_S
        if self.token_rewards_N is not None:
            rewards_N += self.token_rewards_N
        if self.num_tokens:
            owner_N = self.trajectory_of_token_N
            last = (self.lengths_S.cumsum(0) - 1).clamp(min=0)
            target = torch.where(owner_N[last] == self.trajectory_S, last, (last + 1).clamp(max=self.num_tokens - 1))
            present = owner_N[target] == self.trajectory_S  # a trajectory without tokens cannot carry a reward
            rewards_N = rewards_N.index_add(0, target[present], step_rewards_S[present])
        return StepTable(
            rewards_S=rewards_N,
            lengths_S=torch.ones(self.num_tokens, dtype=torch.long),
            trajectory_S=self.trajectory_of_token_N,
            group_R=self.group_R,
            values_N=self.values_N,
            bootstrap_R=self.bootstrap_R,
        )

    def _per_token_of_branches(self, parent_S: Tensor) -> StepTable:
        """`per_token` where episodes branch. An empty step's reward falls on the last token above it in its branch,
        else on the first one of what continues it; a branch without tokens carries none."""
        target_S = self.lengths_S.cumsum(0) - 1
        above_S = torch.tensor(nearest_with_tokens(parent_S, self.lengths_S), dtype=torch.long)
        after_S = torch.tensor(first_tokens_after(parent_S, self.lengths_S), dtype=torch.long)
        target_S = torch.where(self.lengths_S > 0, target_S, torch.where(above_S >= 0, target_S[above_S], after_S))
        present = target_S >= 0

        def on_tokens(values_S: Tensor) -> Tensor:
            zeros_N = torch.zeros(self.num_tokens, dtype=values_S.dtype)
            return zeros_N.index_add(0, target_S[present], values_S[present])

        rewards_N = on_tokens(self.task_rewards_S)
        return StepTable(
            rewards_S=rewards_N if self.token_rewards_N is None else rewards_N + self.token_rewards_N,
            lengths_S=torch.ones(self.num_tokens, dtype=torch.long),
            trajectory_S=self.trajectory_of_token_N,
            group_R=self.group_R,
            values_N=self.values_N,
            bootstrap_R=self.bootstrap_R,
            parent_S=token_parents(parent_S, self.lengths_S),
            branch_rewards_S=None if self.branch_rewards_S is None else on_tokens(self.branch_rewards_S),
        )


def _require_values(values_N: Tensor | None) -> Tensor:
    if values_N is None:
        raise ValueError("this estimator needs a critic; set algorithm.critic.kind=closed_form")
    return values_N
