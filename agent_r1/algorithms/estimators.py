"""Advantage estimators: from a `StepTable` to `Credit`. Pure functions, found by name in `estimators`.

To add one, register a function and name it in the configuration (`algorithm.estimator.name=mine`):

    @estimators.register("mine")
    def mine(table: StepTable, *, scale: float = 1.0) -> Credit: ...

Its keyword arguments are the keys of `algorithm.estimator`. With a `values_N` that is None there is no critic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from agent_r1.algorithms.scan import next_in_segment, reverse_scan
from agent_r1.algorithms.table import StepTable
from agent_r1.registry import Registry

SPREAD_TOLERANCE = 1e-6
"""Returns of a group that differ by less than this, relative to their size, are equal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Credit:
    """What each action token is credited with, aligned with the table's tokens."""

    advantages_N: Tensor
    """How much better the action was than expected."""
    credited_N: Tensor
    """False: no credit could be assigned. Such tokens carry no loss and are in no denominator; it is not the same as
    an advantage of 0."""
    returns_N: Tensor | None = None
    """The critic's targets, where `valued_N`."""
    valued_N: Tensor | None = None
    """The tokens before which the critic is trained."""


Estimator = Callable[..., Credit]

estimators: Registry[Estimator] = Registry("advantage estimator")


def whiten(values: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1; one value becomes 0, never NaN.

    >>> whiten(torch.tensor([1.0, 3.0]))
    tensor([-0.7071,  0.7071])
    """
    if len(values) < 2:
        return torch.zeros_like(values)
    return (values - values.mean()) / (values.std(correction=1) + 1e-8)


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupStatistics:
    """Means and spreads of the trajectories' returns in their groups, each trajectory counted once."""

    mean_R: Tensor
    """The mean return of the trajectory's group."""
    std_R: Tensor
    """Its unbiased standard deviation; 0 for a group of one."""
    has_spread_R: Tensor
    """The group has at least two members and their returns differ."""


def group_statistics(values_R: Tensor, group_R: Tensor) -> GroupStatistics:
    """Statistics of each trajectory's group.

    Returns [1, 0, 5] in groups [0, 0, 1] have means [.5, .5, 5], stds [.7071, .7071, 0] and spread [True, True, False].
    """
    _, index_R = torch.unique(group_R, return_inverse=True)
    num_groups = int(index_R.max()) + 1 if len(index_R) else 0
    zeros_G = torch.zeros(num_groups, dtype=values_R.dtype)
    size_G = zeros_G.index_add(0, index_R, torch.ones_like(values_R))
    mean_G = zeros_G.index_add(0, index_R, values_R) / size_G
    deviation_R = values_R - mean_G[index_R]
    variance_G = zeros_G.index_add(0, index_R, deviation_R**2) / (size_G - 1).clamp(min=1)
    highest_G = zeros_G.scatter_reduce(0, index_R, values_R, "amax", include_self=False)
    lowest_G = zeros_G.scatter_reduce(0, index_R, values_R, "amin", include_self=False)
    scale_G = torch.maximum(highest_G.abs(), lowest_G.abs()).clamp(min=1.0)
    spread_G = (size_G > 1) & (highest_G - lowest_G > SPREAD_TOLERANCE * scale_G)
    return GroupStatistics(mean_R=mean_G[index_R], std_R=variance_G.sqrt()[index_R], has_spread_R=spread_G[index_R])


@estimators.register("group")
def group(table: StepTable, *, normalise_std: bool = True, epsilon: float = 1e-6) -> Credit:
    """GRPO: `A = (R - mean) / (std + eps)` of the group, the same on every token of the trajectory.

    Shao et al. 2024 (arXiv:2402.03300), outcome form. Returns (1, 0) give advantages (.7071, -.7071). A group of one,
    or without spread, has no credit.
    """
    returns_R = table.returns_R
    statistics = group_statistics(returns_R, table.group_R)
    advantages_R = returns_R - statistics.mean_R
    if normalise_std:
        advantages_R = advantages_R / (statistics.std_R + epsilon)
    owner_N = table.trajectory_of_token_N
    return Credit(advantages_N=advantages_R[owner_N], credited_N=statistics.has_spread_R[owner_N])


def _gae(table: StepTable, gamma: float, lam: float, values_S: Tensor) -> Tensor:
    """Generalised advantages of a table's steps (Schulman et al. 2016, arXiv:1506.02438)."""
    after_last_R = torch.zeros(table.num_trajectories, dtype=values_S.dtype)
    if table.bootstrap_R is not None:
        after_last_R = torch.where(table.truncated_R, table.bootstrap_R.to(values_S.dtype), after_last_R)
    next_values_S = next_in_segment(values_S, table.trajectory_S, after_last_R[table.trajectory_S])
    deltas_S = table.rewards_S + gamma * next_values_S - values_S
    return reverse_scan(deltas_S, gamma * lam, table.trajectory_S)


@estimators.register("step_gae")
def step_gae(table: StepTable, *, gamma: float = 1.0, lam: float = 0.95, whitened: bool = True) -> Credit:
    """GAE whose time is steps: one value before each step, gamma and lambda act once a step.

    One trajectory, rewards (0, 1), values (.5, .5), gamma 1, lambda 1: advantages (.5, .5) and targets (1, 1).
    """
    spoken_S = table.lengths_S > 0
    values_S = table.step_values_S()
    advantages_S = _gae(table, gamma, lam, values_S)
    returns_S = advantages_S + values_S
    if whitened:
        advantages_S = torch.zeros_like(advantages_S).masked_scatter(spoken_S, whiten(advantages_S[spoken_S]))
    step_N = table.step_of_token_N
    return Credit(
        advantages_N=advantages_S[step_N],
        credited_N=torch.ones(table.num_tokens, dtype=torch.bool),
        returns_N=returns_S[step_N],
        valued_N=table.first_token_N,
    )


@estimators.register("token_gae")
def token_gae(table: StepTable, *, gamma: float = 1.0, lam: float = 0.95, whitened: bool = True) -> Credit:
    """GAE whose time is action tokens, carried across steps; the tokens in between do not exist for it.

    The value of the next step's first token bootstraps a step's last token.
    """
    tokens = table.per_token()
    values_N = tokens.step_values_S()
    advantages_N = _gae(tokens, gamma, lam, values_N)
    returns_N = advantages_N + values_N
    everywhere_N = torch.ones(table.num_tokens, dtype=torch.bool)
    return Credit(
        advantages_N=whiten(advantages_N) if whitened else advantages_N,
        credited_N=everywhere_N,
        returns_N=returns_N,
        valued_N=everywhere_N,
    )
