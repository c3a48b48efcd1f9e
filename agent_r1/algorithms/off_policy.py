"""Off-policy correction: the engine and the trainer do not compute exactly the same probabilities.

A correction gives each token a weight derived from `w = pi_old / pi_rollout`, the trainer's probability of the sampled
token over the engine's. The weight is a constant: no gradient flows through it. Its keyword arguments are the keys of
`algorithm.off_policy`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from agent_r1.algorithms.lazy_torch import torch
from agent_r1.constraints import NotNegative, Positive
from agent_r1.registry import Registry, takes
from agent_r1.types import LOG_RATIO_BOUND

if TYPE_CHECKING:
    from torch import Tensor

Correction = Callable[..., "Tensor"]
"""From `old_logprobs_N`, `rollout_logprobs_N`, `step_N` to weights."""

corrections: Registry[Correction] = Registry(
    "off-policy correction", accepts=takes(3), expected="a function of log-probs"
)


@corrections.register("none")
def no_correction(old_logprobs_N: Tensor, rollout_logprobs_N: Tensor, step_N: Tensor) -> Tensor:
    """1 everywhere."""
    return torch.ones_like(old_logprobs_N)


@corrections.register("token")
def token(old_logprobs_N: Tensor, rollout_logprobs_N: Tensor, step_N: Tensor, *, cap: Positive = 2.0) -> Tensor:
    """`min(w, cap)` of the token itself. w = .5 and 3 give .5 and 2."""
    return _weight(old_logprobs_N - rollout_logprobs_N).clamp(max=cap)


@corrections.register("sequence")
def sequence(old_logprobs_N: Tensor, rollout_logprobs_N: Tensor, step_N: Tensor, *, cap: Positive = 2.0) -> Tensor:
    """`min(product of w over the step, cap)`, the same on every token of the step: one model call is one sequence.

    w = .5 and .5 in one step give .25 and .25.
    """
    difference_N = (old_logprobs_N - rollout_logprobs_N).detach()
    if not len(step_N):
        return torch.ones_like(difference_N)
    total_S = difference_N.new_zeros(int(step_N.max()) + 1).index_add(0, step_N, difference_N)
    return _weight(total_S)[step_N].clamp(max=cap)


@corrections.register("mask")
def mask(
    old_logprobs_N: Tensor, rollout_logprobs_N: Tensor, step_N: Tensor, *, low: NotNegative = 0.5, high: Positive = 2.0
) -> Tensor:
    """1 where `low <= w <= high`, else 0: tokens on which engine and trainer disagree are ignored."""
    weight_N = _weight(old_logprobs_N - rollout_logprobs_N)
    return ((weight_N >= low) & (weight_N <= high)).to(weight_N.dtype)


def _weight(log_weight: Tensor) -> Tensor:
    return log_weight.detach().clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def engine_divergence(old_logprobs_N: Tensor, rollout_logprobs_N: Tensor) -> Tensor:
    """KL(rollout || old) of each sampled token, estimated as `w - log w - 1`: never negative, 0 where they agree."""
    difference_N = (old_logprobs_N - rollout_logprobs_N).detach().clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return torch.expm1(difference_N) - difference_N
