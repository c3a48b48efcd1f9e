"""Policy losses and the value loss: one number per action token. Aggregation is someone else's business.

To add one, register a function of `LossInputs` and name it in the configuration (`algorithm.loss.name=mine`); its
keyword arguments are the keys of `algorithm.loss`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from agent_r1.registry import Registry

LOG_RATIO_BOUND = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LossInputs:
    """What a policy loss may use, for the action tokens of one micro-batch. Whole steps only."""

    policy_logprobs_N: Tensor
    """Log-probabilities under the weights being trained; the only input with a gradient."""
    old_logprobs_N: Tensor
    """Log-probabilities under the policy that the update starts from."""
    advantages_N: Tensor
    """Credit."""
    step_N: Tensor
    """Which step of the micro-batch each token belongs to, counted from 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLosses:
    """What a policy loss returns."""

    loss_N: Tensor
    """The loss of each token."""
    metrics_N: Mapping[str, Tensor] = field(default_factory=dict)
    """Numbers per token, logged as means under `policy/`."""


PolicyLoss = Callable[..., TokenLosses]

policy_losses: Registry[PolicyLoss] = Registry("policy loss")


def log_ratio(inputs: LossInputs) -> Tensor:
    """`log pi - log pi_old`, bounded so that its exponential stays finite."""
    return (inputs.policy_logprobs_N - inputs.old_logprobs_N).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


@policy_losses.register("clip")
def clip(
    inputs: LossInputs, *, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float | None = 3.0
) -> TokenLosses:
    """PPO's clipped surrogate (Schulman et al. 2017, arXiv:1707.06347) with dual clip (Ye et al. 2020, 1912.09729).

    With ratio 1.5 and advantage 1: -1.2 (clipped). With ratio 5 and advantage -1: 3 instead of 5 (dual clip).
    """
    ratio_N = log_ratio(inputs).exp()
    advantages_N = inputs.advantages_N
    plain_N = -advantages_N * ratio_N
    clipped_N = -advantages_N * ratio_N.clamp(1 - clip_low, 1 + clip_high)
    loss_N = torch.maximum(plain_N, clipped_N)
    if dual_clip is not None:
        bounded_N = torch.minimum(loss_N, -advantages_N * dual_clip)
        loss_N = torch.where(advantages_N < 0, bounded_N, loss_N)
    metrics_N = {
        "clip_fraction": (clipped_N > plain_N).float(),
        "approx_kl": -log_ratio(inputs).detach(),
        "ratio": ratio_N.detach(),
    }
    return TokenLosses(loss_N=loss_N, metrics_N=metrics_N)


@policy_losses.register("nll")
def negative_log_likelihood(inputs: LossInputs) -> TokenLosses:
    """`-log pi`, whatever the credit: imitation of the given tokens, which is what a warm start minimises."""
    return TokenLosses(loss_N=-inputs.policy_logprobs_N)


def value_loss(values_N: Tensor, old_values_N: Tensor, returns_N: Tensor, *, clip_range: float | None) -> Tensor:
    """`1/2 max((V - G)^2, (clip(V, V_old +- c) - G)^2)` per position.

    V = 1, V_old = 0, G = 1, c = .2: the clipped value .2 is off by .8, so the loss is .32.
    """
    squared_N = (values_N - returns_N) ** 2
    if clip_range is not None:
        held_N = old_values_N + (values_N - old_values_N).clamp(-clip_range, clip_range)
        squared_N = torch.maximum(squared_N, (held_N - returns_N) ** 2)
    return 0.5 * squared_N
