"""From hidden states to log-probabilities and entropies, a chunk of tokens at a time.

A vocabulary is large: the logits of a whole micro-batch in float32 would be the largest thing in memory. Here they
exist for one chunk only, going forward and again, recomputed, going backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

CHUNK_LOGITS = 2**26
"""Logits alive at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadSettings:
    """What a model does to its logits after the last matrix."""

    temperature: float = 1.0
    """Logits are divided by it; the model's own scaling is part of it."""
    softcap: float | None = None
    """Logits are bent into (-softcap, softcap) first."""
    dtype: torch.dtype = torch.float32
    """Of the matrix product."""
    chunk: int = 1024
    """Tokens at once."""


def action_scores(
    policy: nn.Module, hidden_N: Tensor, targets_N: Tensor, *, temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target under softmax(logits / temperature), and the distribution's entropy.

    Uniform logits over 4 tokens give (-1.386, 1.386).
    """
    base = cast(Any, policy)
    config, head = base.config.get_text_config(), cast(nn.Linear, base.get_output_embeddings())
    # Granite divides its logits, Cohere multiplies them.
    own_scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", 1.0))
    device = hidden_N.device.type
    settings = HeadSettings(
        temperature=temperature / own_scale,
        softcap=getattr(config, "final_logit_softcapping", None),
        dtype=torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else head.weight.dtype,
        chunk=max(16, CHUNK_LOGITS // head.weight.shape[0]),
    )
    scores = _Head.apply(hidden_N, head.weight, head.bias, targets_N, settings)  # type: ignore[no-untyped-call]
    return cast(tuple[Tensor, Tensor], scores)


class _Head(torch.autograd.Function):
    """The chunked head. Backward recomputes each chunk's logits and never needs more than one of them."""

    @staticmethod
    def forward(
        ctx: Any, hidden_N: Tensor, weight: Tensor, bias: Tensor | None, targets_N: Tensor, settings: HeadSettings
    ) -> tuple[Tensor, Tensor]:
        logprobs_N = hidden_N.new_empty(len(hidden_N), dtype=torch.float32)
        entropy_N, total_N = torch.empty_like(logprobs_N), torch.empty_like(logprobs_N)
        matrix = weight.to(settings.dtype)
        for part in _chunks(len(hidden_N), settings.chunk):
            logits = _logits(hidden_N[part], matrix, bias, settings)
            total_N[part] = logits.logsumexp(-1)
            logprobs_N[part] = logits.gather(1, targets_N[part, None]).squeeze(1) - total_N[part]
            logits -= total_N[part, None]
            entropy_N[part] = -(logits.exp() * logits).sum(-1)
        ctx.save_for_backward(hidden_N, weight, bias, targets_N, total_N, entropy_N)
        ctx.settings = settings
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None, None]:
        hidden_N, weight, bias, targets_N, total_N, entropy_N = ctx.saved_tensors
        logprob_gradient_N, entropy_gradient_N = gradients
        settings: HeadSettings = ctx.settings
        matrix = weight.to(settings.dtype)
        hidden_gradient_N = torch.empty_like(hidden_N)
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        bias_gradient = torch.zeros_like(bias, dtype=torch.float32) if bias is not None else None
        for part in _chunks(len(hidden_N), settings.chunk):
            logits = _logits(hidden_N[part], matrix, bias, settings)
            slope = _softcap_slope(logits, settings)
            logprobs = logits.sub_(total_N[part, None])
            probabilities = logprobs.exp()
            # d logprob[target] = onehot - p;   d entropy = -p (log p + entropy)
            down = logprobs.add_(entropy_N[part, None]).mul_(entropy_gradient_N[part, None])
            down = down.add_(logprob_gradient_N[part, None]).mul_(probabilities).neg_()
            down.scatter_add_(1, targets_N[part, None], logprob_gradient_N[part, None])
            down = down.div_(settings.temperature) if slope is None else down.mul_(slope).div_(settings.temperature)
            if bias_gradient is not None:
                bias_gradient += down.sum(0)
            down = down.to(settings.dtype)
            hidden_gradient_N[part] = (down @ matrix).to(hidden_N.dtype)
            if weight_gradient is not None:
                weight_gradient += down.T @ hidden_N[part].to(settings.dtype)
        return (
            hidden_gradient_N,
            None if weight_gradient is None else weight_gradient.to(weight.dtype),
            None if bias_gradient is None else bias_gradient.to(weight.dtype),
            None,
            None,
        )


def _chunks(total: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]


def _logits(hidden: Tensor, matrix: Tensor, bias: Tensor | None, settings: HeadSettings) -> Tensor:
    logits = (hidden.to(settings.dtype) @ matrix.T).float()
    if bias is not None:
        logits += bias.float()
    if settings.softcap is not None:
        logits = settings.softcap * torch.tanh(logits / settings.softcap)
    return logits.div_(settings.temperature)


def _softcap_slope(logits: Tensor, settings: HeadSettings) -> Tensor | None:
    """How steep the bend is at these (already bent and divided) logits."""
    if settings.softcap is None:
        return None
    return 1 - (logits * (settings.temperature / settings.softcap)) ** 2
