"""Drawing tokens: one uniform number per token, found in the cumulative distribution.

The number is a pure function of the request's seed and the token's index, so what a request draws does not depend on
what else is in its batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agent_r1.seeds import unit_float
from agent_r1.types import SamplingParams


def sample(
    logits: Tensor, requests: Sequence[SamplingParams], token_indices: Sequence[int]
) -> tuple[list[int], list[float]]:
    """One token a row of `logits` [rows, vocabulary], and its log-probability under softmax(logits / temperature).

    Greedy rows (temperature 0) take the most likely token and report its log-probability at temperature 1. Top-k and
    top-p decide what may be drawn, not what log-probability is reported.
    """
    temperatures = torch.tensor([r.temperature or 1.0 for r in requests], dtype=torch.float32, device=logits.device)
    logprobs = torch.log_softmax(logits.float() / temperatures[:, None], dim=-1)
    # float64: a float32 cumulative sum over a large vocabulary loses the tail.
    cumulative = _restrict(logprobs.exp(), requests).cumsum(dim=-1, dtype=torch.float64)
    uniform = [unit_float(r.seed, index) for r, index in zip(requests, token_indices, strict=True)]
    target = torch.tensor(uniform, dtype=torch.float64, device=logits.device) * cumulative[:, -1]
    drawn = torch.searchsorted(cumulative, target[:, None], right=True).squeeze(1).clamp_(max=logits.shape[1] - 1)
    greedy = torch.tensor([r.temperature == 0 for r in requests], device=logits.device)
    tokens = torch.where(greedy, logprobs.argmax(dim=-1), drawn)
    chosen = logprobs.gather(1, tokens[:, None]).squeeze(1)
    return tokens.tolist(), chosen.tolist()


def _restrict(probabilities: Tensor, requests: Sequence[SamplingParams]) -> Tensor:
    """Zero what top-k and top-p leave out."""
    if all(r.top_k == 0 and r.top_p >= 1.0 for r in requests):
        return probabilities
    probabilities = probabilities.double()
    device, vocabulary = probabilities.device, probabilities.shape[1]
    top_k = torch.tensor([r.top_k or vocabulary for r in requests], device=device)
    top_p = torch.tensor([r.top_p for r in requests], dtype=torch.float64, device=device)
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(vocabulary, device=device)
    mass_before = ordered.cumsum(dim=-1) - ordered
    kept = (ranks < top_k[:, None]) & ((mass_before < top_p[:, None]) | (top_p[:, None] >= 1.0))
    kept[:, 0] = True
    return torch.zeros_like(probabilities).scatter(1, order, torch.where(kept, ordered, 0.0))
