"""Sampling tokens: one uniform number per token, looked up in the cumulative distribution.

The number is a pure function of the request's seed and the token's index, so a request's tokens do not depend on what
else is in its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agent_r1.seeds import unit_float
from agent_r1.types import SamplingParams

NumberTable = np.ndarray[tuple[int, int], np.dtype[np.float32]]


def sample(
    logits: Tensor, requests: Sequence[SamplingParams], token_indices: Sequence[int]
) -> tuple[list[int], list[float]]:
    """One token per row of `logits` [rows, vocabulary], and its log-probability under softmax(logits / temperature).

    Greedy rows (temperature 0) take the most likely token and report its log-probability at temperature 1. Top-k and
    top-p restrict which tokens can be sampled; they do not change the reported log-probability.
    """
    temperatures = torch.tensor([r.temperature or 1.0 for r in requests], dtype=torch.float32, device=logits.device)
    logprobs = torch.log_softmax(logits.float() / temperatures[:, None], dim=-1)
    # float64: a float32 cumulative sum over a large vocabulary loses the tail.
    cumulative = _restrict(logprobs.exp(), requests).cumsum(dim=-1, dtype=torch.float64)
    uniform = [unit_float(r.seed, index) for r, index in zip(requests, token_indices, strict=True)]
    target = torch.tensor(uniform, dtype=torch.float64, device=logits.device) * cumulative[:, -1]
    sampled = torch.searchsorted(cumulative, target[:, None], right=True).squeeze(1).clamp_(max=logits.shape[1] - 1)
    greedy = torch.tensor([r.temperature == 0 for r in requests], device=logits.device)
    tokens = torch.where(greedy, logprobs.argmax(dim=-1), sampled)
    chosen = logprobs.gather(1, tokens[:, None]).squeeze(1)
    return tokens.tolist(), chosen.tolist()


def uniforms(seeds: Sequence[int], first_indices: Sequence[int], count: int) -> NumberTable:
    """[requests, count] float32 in [0, 1): what `unit_float(seed, index)` gives for `count` indices from the first on.

    >>> bool(abs(uniforms([7], [3], 2)[0, 1] - unit_float(7, 4)) < 1e-7)
    True
    """
    mask = 2**64 - 1
    with np.errstate(over="ignore"):
        state = _mix(np.array([seed & mask for seed in seeds], dtype=np.uint64))[:, None]
        indices = np.array(first_indices, dtype=np.uint64)[:, None] + np.arange(count, dtype=np.uint64)
        state = _mix(np.add(state, indices, dtype=np.uint64))
    numbers = ((state >> np.uint64(11)) / 2.0**53).astype(np.float32)
    return np.minimum(numbers, np.float32(1 - 2.0**-24))  # rounding must not reach 1


def _mix(state: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """One round of `mix_seed`."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _restrict(probabilities: Tensor, requests: Sequence[SamplingParams]) -> Tensor:
    """Set tokens outside top-k and top-p to zero."""
    if all(r.top_k == 0 and r.top_p >= 1.0 for r in requests):
        return probabilities
    probabilities = probabilities.double()
    device, vocabulary = probabilities.device, probabilities.shape[1]
    top_k = torch.tensor([r.top_k or vocabulary for r in requests], device=device)
    top_p = torch.tensor([r.top_p for r in requests], dtype=torch.float64, device=device)
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(vocabulary, device=device)
    mass_before = ordered.cumsum(dim=-1) - ordered
    is_kept = (ranks < top_k[:, None]) & ((mass_before < top_p[:, None]) | (top_p[:, None] >= 1.0))
    is_kept[:, 0] = True
    return torch.zeros_like(probabilities).scatter(1, order, torch.where(is_kept, ordered, 0.0))
