"""From hidden states to log-probabilities and entropies, one chunk of tokens at a time.

Vocabularies are large: the logits of a whole micro-batch in float32 would be the largest tensor in memory. Here they
exist for one chunk only, in the forward pass and, recomputed, in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from agent_r1.errors import EngineError, raising
from agent_r1.models.compile_clock import watch_compilation

CHUNK_LOGITS = {"cpu": 2**26, "cuda": 2**28}
"""Logits in memory at once: on a CPU few enough for its caches, on a GPU enough for large matrix products."""

MAX_HEAD_ERROR = 0.05
"""Relative to the logits: bfloat16 rounding is ten times smaller, a missing scale or cap is larger."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadSettings:
    """What a model does to its logits after the last matrix."""

    temperature: float = 1.0
    """Logits are divided by it; the model's own scaling is part of it."""
    softcap: float | None = None
    """Logits are soft-capped to (-softcap, softcap) first."""
    dtype: torch.dtype = torch.float32
    """The type of the matrix product."""
    chunk: int = 1024
    """Tokens at once."""

    @property
    def scale(self) -> float:
        """What the logits are multiplied by."""
        return 1.0 / self.temperature


def action_scores(
    policy: nn.Module, hidden_N: Tensor, targets_N: Tensor, *, temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target under softmax(logits / temperature), and the distribution's entropy.

    Uniform logits over 4 tokens give (-1.386, 1.386).
    """
    head = _output_layer(policy)
    settings = _settings(policy, hidden_N.device.type, temperature)
    scores = _Head.apply(hidden_N, head.weight, head.bias, targets_N, settings)  # type: ignore[no-untyped-call]
    return cast(tuple[Tensor, Tensor], scores)


def check_head(policy: nn.Module) -> None:
    """Raise `EngineError` for a model whose logits differ from those of `action_scores`, compared on two tokens."""
    base = cast(Any, policy)
    tokens = torch.zeros(1, 2, dtype=torch.long, device=next(policy.parameters()).device)
    tokens[0, 1] = 1
    head, settings = _output_layer(policy), _settings(policy, tokens.device.type, temperature=1.0)
    with torch.no_grad(), raising(EngineError, f"{type(policy).__name__} cannot compute two tokens"):
        hidden = base.get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state[0]
        raw = _product(hidden.to(settings.dtype), head.weight)
        ours = _logits(raw, head.bias, settings.softcap, settings.scale)
        expected = base(input_ids=tokens, use_cache=False).logits[0].float()
    if not bool(expected.isfinite().all()):
        raise EngineError(
            f"{type(policy).__name__} gives logits of nan or inf: its weights are damaged, or too large for "
            f"{str(settings.dtype).removeprefix('torch.')}; download the model again, or set model.dtype=float32"
        )
    if not bool((ours - expected).norm() <= MAX_HEAD_ERROR * expected.norm()):
        raise EngineError(
            f"{type(policy).__name__} changes its logits after the output layer in a way that is not applied: on two "
            f"tokens ours are {ours.norm():.4g} large and the model's {expected.norm():.4g}. Choose another model"
        )


def _output_layer(policy: nn.Module) -> nn.Linear:
    return cast(nn.Linear, cast(Any, policy).get_output_embeddings())


def _settings(policy: nn.Module, device: str, temperature: float) -> HeadSettings:
    config, weight = cast(Any, policy).config.get_text_config(), _output_layer(policy).weight
    # Granite divides its logits, Cohere multiplies them.
    model_scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", 1.0))
    return HeadSettings(
        temperature=temperature / model_scale,
        softcap=getattr(config, "final_logit_softcapping", None),
        dtype=torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype,
        chunk=max(16, CHUNK_LOGITS.get(device, 2**26) // weight.shape[0]),
    )


class _Head(torch.autograd.Function):
    """The chunked head. Backward recomputes each chunk's logits and never needs more than one of them."""

    @staticmethod
    def forward(
        ctx: Any, hidden_N: Tensor, weight: Tensor, bias: Tensor | None, targets_N: Tensor, settings: HeadSettings
    ) -> tuple[Tensor, Tensor]:
        logprobs_N = hidden_N.new_empty(len(hidden_N), dtype=torch.float32)
        entropy_N, total_N = torch.empty_like(logprobs_N), torch.empty_like(logprobs_N)
        matrix, flat = weight.to(settings.dtype), hidden_N.to(settings.dtype)
        summarise = _for_device(_summary, hidden_N.device)
        for part in _chunks(len(hidden_N), settings.chunk):
            raw = _product(flat[part], matrix)
            logprobs_N[part], entropy_N[part], total_N[part] = summarise(
                raw, bias, targets_N[part], settings.softcap, settings.scale
            )
        ctx.save_for_backward(flat, weight, bias, targets_N, total_N, entropy_N)
        ctx.settings, ctx.hidden_dtype = settings, hidden_N.dtype
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None, None]:
        flat, weight, bias, targets_N, total_N, entropy_N = ctx.saved_tensors
        settings: HeadSettings = ctx.settings
        matrix = weight.to(settings.dtype)
        hidden_gradient_N = torch.empty_like(flat)
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        bias_gradient = torch.zeros_like(bias, dtype=torch.float32) if bias is not None else None
        slope = _for_device(_slope, flat.device)
        for part in _chunks(len(flat), settings.chunk):
            down = slope(
                _product(flat[part], matrix),
                settings.dtype,
                bias,
                targets_N[part],
                total_N[part],
                entropy_N[part],
                *(gradient[part] for gradient in gradients),
                settings.softcap,
                settings.scale,
            )
            if bias_gradient is not None:
                bias_gradient += down.sum(0, dtype=torch.float32)
            torch.mm(down, matrix, out=hidden_gradient_N[part])
            if weight_gradient is not None:
                if settings.dtype == torch.float32:
                    weight_gradient.addmm_(down.T, flat[part])
                else:
                    weight_gradient += _product(down.T, flat[part].T)
        return (
            hidden_gradient_N.to(ctx.hidden_dtype),
            None if weight_gradient is None else weight_gradient.to(weight.dtype),
            None if bias_gradient is None else bias_gradient.to(weight.dtype),
            None,
            None,
        )


def _chunks(total: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right.T in float32: the float32 sums of tensor cores are not rounded."""
    if left.is_cuda and left.dtype != torch.float32:
        return torch.mm(left, right.T, out_dtype=torch.float32)
    return (left @ right.T).float()


def _logits(raw: Tensor, bias: Tensor | None, softcap: float | None, scale: float) -> Tensor:
    """New tensors, which may be changed in place."""
    logits = raw if bias is None else raw + bias.float()
    return logits * scale if softcap is None else torch.tanh(logits / softcap).mul_(scale * softcap)


def _summary(
    raw: Tensor, bias: Tensor | None, targets: Tensor, softcap: float | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability of the targets, entropy, and the logarithm of the sum of exponentials."""
    logits = _logits(raw, bias, softcap, scale)
    total = logits.logsumexp(-1)
    logprobs = logits.gather(1, targets[:, None]).squeeze(1) - total
    logits -= total[:, None]
    return logprobs, -(logits.exp() * logits).sum(-1), total


def _slope(
    raw: Tensor,
    dtype: torch.dtype,
    bias: Tensor | None,
    targets: Tensor,
    total: Tensor,
    entropy: Tensor,
    logprob_gradient: Tensor,
    entropy_gradient: Tensor,
    softcap: float | None,
    scale: float,
) -> Tensor:
    """The gradient at the matrix product, as `dtype`.

    d logprob[target] = onehot - p; d entropy = -p (log p + entropy).
    """
    logits = _logits(raw, bias, softcap, scale)
    bend = None if softcap is None else 1 - (logits / (scale * softcap)) ** 2
    logprobs = logits.sub_(total[:, None])
    probabilities = logprobs.exp()
    down = logprobs.add_(entropy[:, None]).mul_(entropy_gradient[:, None])
    down = down.add_(logprob_gradient[:, None]).mul_(probabilities).neg_()
    if raw.is_cuda:  # a scatter would split the kernel that this is compiled to
        hit = torch.arange(raw.shape[1], device=raw.device) == targets[:, None]
        down = torch.where(hit, down + logprob_gradient[:, None], down)
    else:
        down.scatter_add_(1, targets[:, None], logprob_gradient[:, None])
    return (down.mul_(scale) if bend is None else down.mul_(bend).mul_(scale)).to(dtype)


@lru_cache
def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    watch_compilation()
    return torch.compile(function, dynamic=True)


def _for_device(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """On CUDA the function is compiled into one kernel: each of its small steps would read all logits once more."""
    return _compile(function) if device.type == "cuda" else function
