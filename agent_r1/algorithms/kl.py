"""Divergence from the reference policy, estimated per action token (Schulman, "Approximating KL divergence").

With d = log pi - log pi_ref of a token drawn from pi. A name with `+` (`k3+`) has the value of its estimator and the
gradient of k2, which is the gradient of the divergence: in a loss k1's gradient is zero on average, and k3's is that of
the reverse divergence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from agent_r1.algorithms.lazy_torch import torch
from agent_r1.registry import Registry, takes

if TYPE_CHECKING:
    from torch import Tensor

KLEstimator = Callable[["Tensor", "Tensor"], "Tensor"]

kl_estimators: Registry[KLEstimator] = Registry("KL estimator", accepts=takes(2), expected="a function of log-probs")


@kl_estimators.register("k1")
def k1(policy_logprobs_N: Tensor, reference_logprobs_N: Tensor) -> Tensor:
    """`d`: unbiased, of either sign."""
    return policy_logprobs_N - reference_logprobs_N


@kl_estimators.register("abs")
def absolute(policy_logprobs_N: Tensor, reference_logprobs_N: Tensor) -> Tensor:
    """`|d|`: biased upwards, never negative."""
    return (policy_logprobs_N - reference_logprobs_N).abs()


@kl_estimators.register("k2")
def k2(policy_logprobs_N: Tensor, reference_logprobs_N: Tensor) -> Tensor:
    """`d^2 / 2`: biased, but its gradient is the right one."""
    return 0.5 * (policy_logprobs_N - reference_logprobs_N) ** 2


@kl_estimators.register("k3")
def k3(policy_logprobs_N: Tensor, reference_logprobs_N: Tensor) -> Tensor:
    """`exp(-d) + d - 1`: unbiased and never negative. d = 0 gives 0. d is clamped to +-20, the value to +-10."""
    difference_N = (policy_logprobs_N - reference_logprobs_N).clamp(-20.0, 20.0)
    return (torch.expm1(-difference_N) + difference_N).clamp(-10.0, 10.0)


def with_k2_gradient(estimator: KLEstimator) -> KLEstimator:
    """The estimator's value with k2's gradient: what a `+` after its name means."""

    def straight_through(policy_logprobs_N: Tensor, reference_logprobs_N: Tensor) -> Tensor:
        value_N = estimator(policy_logprobs_N, reference_logprobs_N).detach()
        slope_N = k2(policy_logprobs_N, reference_logprobs_N)
        return value_N + (slope_N - slope_N.detach())

    return straight_through


for _name in ("k1", "abs", "k2", "k3"):
    kl_estimators.register(f"{_name}+")(with_k2_gradient(kl_estimators.get(_name)))


def adapted_coefficient(
    coefficient: float, *, observed: float, target: float, horizon: float, num_trajectories: int
) -> float:
    """The coefficient after a batch, moved towards the target divergence (Ziegler et al. 2019, arXiv:1909.08593).

    `beta (1 + clip(KL / target - 1, +-.2) n / horizon)`. Twice the target over 100 of a horizon of 1000 trajectories
    raises it by 2 %. One batch changes it by a fifth at most, and not at all when its divergence is not finite.
    """
    if not math.isfinite(observed):
        return coefficient
    error = min(max(observed / target - 1.0, -0.2), 0.2)
    return coefficient * (1.0 + error * min(1.0, num_trajectories / horizon))
