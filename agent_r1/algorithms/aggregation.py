"""Aggregations: the weight of each token in the loss, over the whole batch at once.

An aggregation returns weights, not a mean: the loss of a batch is `sum(weight * token loss)`. The weights are computed
before the batch is split into micro-batches or over ranks, so neither changes a gradient. Keyword arguments are
the keys of `algorithm.aggregation`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from agent_r1.algorithms.lazy_torch import torch
from agent_r1.constraints import Positive
from agent_r1.registry import Registry, takes

if TYPE_CHECKING:
    from torch import Tensor

Aggregation = Callable[..., "Tensor"]
"""From `credited_N`, `step_N`, `trajectory_N` to weights."""

aggregations: Registry[Aggregation] = Registry(
    "aggregation", accepts=takes(3), expected="a function of credited tokens"
)


def _share(credited_N: Tensor, owner_N: Tensor) -> Tensor:
    """1 / (credited tokens of the token's owner), 0 without credit."""
    size = int(owner_N.max()) + 1 if len(owner_N) else 0
    weights_N = credited_N.double()
    counts = torch.zeros(size, dtype=torch.float64).index_add(0, owner_N, weights_N)
    return weights_N / counts[owner_N].clamp(min=1)


def _num_owners(credited_N: Tensor, owner_N: Tensor) -> int:
    return len(torch.unique(owner_N[credited_N]))


@aggregations.register("token-mean")
def token_mean(credited_N: Tensor, step_N: Tensor, trajectory_N: Tensor) -> Tensor:
    """All credited tokens have equal weight: three tokens weigh 1/3 each."""
    return credited_N.double() / max(1, int(credited_N.sum()))


@aggregations.register("step-mean-token-mean")
def step_mean_token_mean(credited_N: Tensor, step_N: Tensor, trajectory_N: Tensor) -> Tensor:
    """All steps have equal weight, and all tokens of a step. Steps of 1 and 2 tokens: weights 1/2, 1/4, 1/4."""
    return _share(credited_N, step_N) / max(1, _num_owners(credited_N, step_N))


@aggregations.register("trajectory-mean-token-mean")
def trajectory_mean_token_mean(credited_N: Tensor, step_N: Tensor, trajectory_N: Tensor) -> Tensor:
    """All trajectories have equal weight, however many steps they have, and all tokens of a trajectory."""
    return _share(credited_N, trajectory_N) / max(1, _num_owners(credited_N, trajectory_N))


@aggregations.register("trajectory-mean-token-sum")
def trajectory_mean_token_sum(credited_N: Tensor, step_N: Tensor, trajectory_N: Tensor) -> Tensor:
    """The sum over a trajectory's tokens, averaged over trajectories."""
    return credited_N.double() / max(1, _num_owners(credited_N, trajectory_N))


@aggregations.register("token-sum-norm")
def token_sum_norm(credited_N: Tensor, step_N: Tensor, trajectory_N: Tensor, *, divisor: Positive) -> Tensor:
    """The sum over a trajectory's tokens over a constant, averaged over trajectories: a long answer's tokens weigh as
    much as a short one's. One trajectory and divisor 4: every token weighs 1/4."""
    if not divisor > 0:
        raise ValueError(f"token-sum-norm needs a divisor above 0, found {divisor}")
    return trajectory_mean_token_sum(credited_N, step_N, trajectory_N) / divisor
