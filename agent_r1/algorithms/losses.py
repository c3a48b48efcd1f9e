"""Policy losses and the value loss: one number per action token. Aggregation is separate (`aggregation.py`).

To add one, register a function of `LossInputs` and name it in the configuration (`algorithm.loss.name=mine`); its
keyword arguments are the keys of `algorithm.loss`:

    @policy_losses.register("mine")
    def mine(inputs: LossInputs, *, power: float = 1.0) -> TokenLosses: ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from agent_r1.algorithms.lazy_torch import torch
from agent_r1.constraints import Positive, one_of
from agent_r1.registry import Registry, takes
from agent_r1.types import LOG_RATIO_BOUND

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class LossInputs:
    """What a policy loss may use, for the action tokens of one micro-batch. Whole steps only."""

    policy_logprobs_N: Tensor
    """Log-probabilities under the weights being trained; the only input with a gradient."""
    old_logprobs_N: Tensor
    """Log-probabilities under the policy that the update starts from."""
    advantages_N: Tensor
    """The advantage of each token."""
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

policy_losses: Registry[PolicyLoss] = Registry("policy loss", accepts=takes(1), expected="a function of LossInputs")


def log_ratio(inputs: LossInputs) -> Tensor:
    """`log pi - log pi_old`, bounded so that its exponential stays finite."""
    return (inputs.policy_logprobs_N - inputs.old_logprobs_N).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def step_log_ratio(inputs: LossInputs) -> Tensor:
    """The mean log-ratio of the token's step (so the ratio is the geometric mean over the step), in token form.

    The value is the step's; the gradient of each token's entry flows to its own log-probability alone, so the mean
    over the step's tokens has the gradient of the step's log-ratio. Log-ratios (0, .2) of one step give (.1, .1).
    """
    log_ratio_N = log_ratio(inputs).detach()
    step_ratio_N = mean_of_step(log_ratio_N, inputs.step_N)
    # The bracket is exactly 0; added one after the other, rounding would give each token a ratio of its own.
    return step_ratio_N + (inputs.policy_logprobs_N - inputs.policy_logprobs_N.detach())


def mean_of_step(values_N: Tensor, step_N: Tensor) -> Tensor:
    """The mean over the step of each token: (1, 3, 5) in steps (0, 0, 1) gives (2, 2, 5)."""
    if not len(step_N):
        return values_N
    zeros_S = values_N.new_zeros(int(step_N.max()) + 1)
    sums_S = zeros_S.index_add(0, step_N, values_N)
    counts_S = zeros_S.index_add(0, step_N, torch.ones_like(values_N))
    return (sums_S / counts_S.clamp(min=1))[step_N]


@policy_losses.register("clip")
def clip(
    inputs: LossInputs,
    *,
    ratio: Annotated[str, one_of("token", "step")] = "token",
    clip_low: Positive = 0.2,
    clip_high: Positive = 0.2,
    dual_clip: Annotated[float, Field(gt=1)] | None = 3.0,
) -> TokenLosses:
    """PPO's clipped surrogate (Schulman et al. 2017, arXiv:1707.06347) with dual clip (Ye et al. 2020, 1912.09729).

    With ratio 1.5 and advantage 1: -1.2 (clipped). With ratio 5 and advantage -1: 3 instead of 5 (dual clip).
    `ratio=step` takes one ratio for all tokens of a step, their geometric mean (GSPO, Zheng et al. 2025,
    arXiv:2507.18071).
    """
    if ratio not in _LOG_RATIOS:
        raise ValueError(f"ratio={ratio} is not one of {', '.join(_LOG_RATIOS)}")
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError(f"dual_clip={dual_clip} must be more than 1, or null")
    log_ratio_N = _LOG_RATIOS[ratio](inputs)
    ratio_N = log_ratio_N.exp()
    advantages_N = inputs.advantages_N
    plain_N = -advantages_N * ratio_N
    clipped_N = -advantages_N * ratio_N.clamp(1 - clip_low, 1 + clip_high)
    loss_N = torch.maximum(plain_N, clipped_N)
    if dual_clip is not None:
        bounded_N = torch.minimum(loss_N, -advantages_N * dual_clip)
        loss_N = torch.where(advantages_N < 0, bounded_N, loss_N)
    metrics_N = {
        "clip_fraction": (clipped_N > plain_N).float(),
        "approx_kl": -log_ratio_N.detach(),
        "ratio": ratio_N.detach(),
    }
    return TokenLosses(loss_N=loss_N, metrics_N=metrics_N)


_LOG_RATIOS: Mapping[str, Callable[[LossInputs], Tensor]] = {"token": log_ratio, "step": step_log_ratio}


@policy_losses.register("reinforce")
def reinforce(inputs: LossInputs) -> TokenLosses:
    """`-A log pi`: the plain policy gradient, correct for one update per batch. A = 2 and log pi = -1 give 2."""
    metrics_N = {"approx_kl": -log_ratio(inputs).detach()}
    return TokenLosses(loss_N=-inputs.advantages_N * inputs.policy_logprobs_N, metrics_N=metrics_N)


@policy_losses.register("cispo")
def cispo(inputs: LossInputs, *, clip_high: Positive = 4.0) -> TokenLosses:
    """CISPO: `-min(ratio, 1 + clip_high) A log pi` with the ratio detached (MiniMax 2025, arXiv:2506.13585).

    The importance weight is bounded, and every token keeps its gradient. Ratio 9, A = 1, log pi = -1, bound 5: 5.
    """
    ratio_N = log_ratio(inputs).detach().exp()
    weight_N = ratio_N.clamp(max=1 + clip_high)
    metrics_N = {
        "clip_fraction": (ratio_N > weight_N).float(),
        "approx_kl": -log_ratio(inputs).detach(),
        "ratio": ratio_N,
    }
    return TokenLosses(loss_N=-weight_N * inputs.advantages_N * inputs.policy_logprobs_N, metrics_N=metrics_N)


@policy_losses.register("nll")
def negative_log_likelihood(inputs: LossInputs) -> TokenLosses:
    """`-log pi`, independent of the credit: imitation of the given tokens, the loss of a warm start."""
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
