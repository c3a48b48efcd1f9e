"""`Credit`, the result of every estimator, and statistics that several of them use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_r1.algorithms.lazy_torch import torch
from agent_r1.algorithms.table import StepTable
from agent_r1.registry import Registry, takes
from agent_r1.rewards import SPREAD_TOLERANCE

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Credit:
    """The credit of each action token, aligned with the table's tokens."""

    advantages_N: Tensor
    """How much better the action was than expected."""
    credited_N: Tensor
    """False: no credit could be assigned. Such tokens carry no loss and are excluded from denominators, unlike tokens
    with an advantage of 0."""
    returns_N: Tensor | None = None
    """The critic's targets, where `valued_N`."""
    valued_N: Tensor | None = None
    """The tokens before which the critic is trained."""
    observed_N: Tensor | None = None
    """The observed return from each token on, without any value of the critic but the bootstrap after a truncation.
    Explained variance is measured against it, and a critic in closed form is fitted to it. None: use
    `returns_N`."""

    @classmethod
    def of_trajectories(cls, table: StepTable, advantages_R: Tensor, credited_R: Tensor) -> Credit:
        """The same advantage on every token of a trajectory."""
        owner_N = table.trajectory_of_token_N
        return cls(advantages_N=advantages_R[owner_N], credited_N=credited_R[owner_N])

    @classmethod
    def of_steps(cls, table: StepTable, advantages_S: Tensor, credited_S: Tensor | None = None) -> Credit:
        """The same advantage on every token of a step; without `credited_S` every step has credit."""
        step_N = table.step_of_token_N
        everywhere_N = torch.ones(len(step_N), dtype=torch.bool)
        return cls(
            advantages_N=advantages_S[step_N], credited_N=everywhere_N if credited_S is None else credited_S[step_N]
        )


Estimator = Callable[..., Credit]

estimators: Registry[Estimator] = Registry(
    "advantage estimator", accepts=takes(1), expected="a function of a step table"
)


def whiten(values: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1; one value becomes 0, never NaN.

    >>> whiten(torch.tensor([1.0, 3.0]))
    tensor([-0.7071,  0.7071])
    """
    if len(values) < 2 or not _differ(values):
        return torch.zeros_like(values)
    return (values - values.mean()) / (values.std(correction=1) + 1e-8)


def _differ(values: Tensor) -> bool:
    """Whether values differ by more than rounding errors, which a division by their own size would make large."""
    return bool(values.max() - values.min() > 4 * torch.finfo(values.dtype).eps * values.abs().max())


def standardize(deviations: Tensor, std: Tensor, epsilon: float) -> Tensor:
    """Deviations from a mean, divided by the standard deviation; 0 where there is none."""
    return torch.where(std > 0, deviations / (std + epsilon), torch.zeros_like(deviations))


def whiten_masked(values: Tensor, chosen: Tensor) -> Tensor:
    """Whiten the chosen values among themselves; 0 elsewhere.

    Values (1, 9, 3) with the outer two chosen become (-.7071, 0, .7071).
    """
    return torch.zeros_like(values).masked_scatter(chosen, whiten(values[chosen]))


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupStatistics:
    """Means and spreads of numbers in their groups, each number counted once."""

    mean_R: Tensor
    """The mean of the number's group."""
    std_R: Tensor
    """The unbiased standard deviation of the group; 0 for a group of one."""
    size_R: Tensor
    """How many numbers are in the group."""
    has_spread_R: Tensor
    """The group has at least two members and they differ."""


def group_statistics(values_R: Tensor, group_R: Tensor) -> GroupStatistics:
    """Statistics of each number's group.

    Returns [1, 0, 5] in groups [0, 0, 1] have means [.5, .5, 5], stds [.7071, .7071, 0], sizes [2, 2, 1] and spread
    [True, True, False].
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
    return GroupStatistics(
        mean_R=mean_G[index_R],
        std_R=variance_G.sqrt()[index_R],
        size_R=size_G[index_R],
        has_spread_R=spread_G[index_R],
    )


def has_spread(table: StepTable) -> Tensor:
    """[R] The trajectory's group earned different returns.

    A penalty per token (KL in the reward) is left out: it always differs, also in a group in which all members did
    equally well.
    """
    return group_statistics(table.task_returns_R, table.group_R).has_spread_R
