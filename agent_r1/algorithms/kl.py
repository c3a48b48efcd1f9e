"""Divergence from the reference policy, estimated per action token (Schulman, "Approximating KL divergence")."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from agent_r1.registry import Registry

KLEstimator = Callable[[Tensor, Tensor], Tensor]

kl_estimators: Registry[KLEstimator] = Registry("KL estimator")


@kl_estimators.register("k1")
def k1(policy_logprobs_N: Tensor, reference_logprobs_N: Tensor) -> Tensor:
    """`log pi - log pi_ref`: unbiased, of either sign."""
    return policy_logprobs_N - reference_logprobs_N


@kl_estimators.register("k2")
def k2(policy_logprobs_N: Tensor, reference_logprobs_N: Tensor) -> Tensor:
    """Half the squared log-ratio: biased, but its gradient is the right one."""
    return 0.5 * (policy_logprobs_N - reference_logprobs_N) ** 2


@kl_estimators.register("k3")
def k3(policy_logprobs_N: Tensor, reference_logprobs_N: Tensor) -> Tensor:
    """`exp(-d) + d - 1` with d = log pi - log pi_ref: unbiased and never negative. d = 0 gives 0."""
    difference_N = (policy_logprobs_N - reference_logprobs_N).clamp(-20.0, 20.0)
    return ((-difference_N).exp() + difference_N - 1).clamp(-10.0, 10.0)
