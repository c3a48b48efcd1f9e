"""Sampling on the device against sampling on the CPU: the same tokens and log-probabilities from the same numbers.

They run on CUDA, or anywhere in triton's interpreter: `TRITON_INTERPRET=1 pytest tests/cuda/test_sampling_kernels.py`.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from agent_r1.engines.local.cuda.sampling_kernels import SampleResults, SampleSettings, advance
from agent_r1.engines.local.cuda.sampling_kernels import sample as sample_on_device
from agent_r1.engines.local.sampling import sample, uniforms
from agent_r1.types import SamplingParams

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the interpreter is numpy, which warns of NaN
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None or not (CUDA or os.environ.get("TRITON_INTERPRET") == "1"),
        reason="needs triton, and a CUDA device or TRITON_INTERPRET=1",
    ),
]


def sampled(logits: Tensor, requests: list[SamplingParams], index: int) -> tuple[list[int], list[float]]:
    """What the kernels sample for each request in step `index`."""
    rows, count = len(requests), index + 1
    settings = SampleSettings(
        temperatures=torch.tensor([r.temperature for r in requests], device=DEVICE),
        top_k=torch.tensor([r.top_k for r in requests], dtype=torch.int32, device=DEVICE),
        top_p=torch.tensor([r.top_p for r in requests], device=DEVICE),
        uniforms=torch.from_numpy(uniforms([r.seed for r in requests], [0] * rows, count)).to(DEVICE),
    )
    results = SampleResults(
        tokens=torch.full((count, rows), -1, dtype=torch.int32, device=DEVICE),
        logprobs=torch.zeros(count, rows, device=DEVICE),
    )
    step = torch.tensor([index], dtype=torch.int32, device=DEVICE)
    sample_on_device(
        logits.to(DEVICE), settings, step, results, restricted=any(r.top_k or r.top_p < 1 for r in requests)
    )
    return results.tokens[index].tolist(), results.logprobs[index].tolist()


def agree(logits: Tensor, requests: list[SamplingParams], index: int = 0) -> None:
    tokens, logprobs = sampled(logits, requests, index)
    expected_tokens, expected_logprobs = sample(logits, requests, [index] * len(requests))
    assert tokens == expected_tokens
    assert logprobs == pytest.approx(expected_logprobs, abs=2e-5)


@pytest.mark.parametrize("vocabulary", [7, 300, 4096, 9001])
@pytest.mark.parametrize("index", [0, 3])
def test_the_device_samples_what_the_cpu_samples(vocabulary: int, index: int) -> None:
    torch.manual_seed(vocabulary)
    requests = [SamplingParams(seed=seed, temperature=0.5 + seed / 4) for seed in range(12)]
    agree(3 * torch.randn(12, vocabulary), requests, index)


def test_greedy_rows_take_the_first_of_the_largest() -> None:
    logits = torch.zeros(2, 9000)
    logits[0, [5000, 7000]] = 4.0
    logits[1, 8999] = 1.0
    agree(logits, [SamplingParams(temperature=0.0), SamplingParams(temperature=0.0)])
    assert sampled(logits, [SamplingParams(temperature=0.0)] * 2, 0)[0] == [5000, 8999]


@pytest.mark.parametrize(
    ("top_k", "top_p"), [(1, 1.0), (5, 1.0), (0, 0.3), (0, 0.9), (40, 0.7), (0, 1e-6), (100000, 1.0)]
)
def test_top_k_and_top_p_leave_what_they_leave_on_the_cpu(top_k: int, top_p: float) -> None:
    torch.manual_seed(top_k)
    plain = [SamplingParams(seed=seed, temperature=1.3) for seed in range(10)]
    requests = [replace(r, top_k=top_k, top_p=top_p) if r.seed % 3 else r for r in plain]
    agree(2 * torch.randn(10, 5000), requests)


def test_equal_values_are_kept_in_the_order_of_their_ids() -> None:
    logits = torch.zeros(8, 5000)
    logits[:, 4500:] = -100.0
    requests = [SamplingParams(seed=seed, top_k=3) for seed in range(4)] + [
        SamplingParams(seed=seed, top_p=0.001) for seed in range(4)
    ]
    tokens, _ = sampled(logits, requests, 0)
    assert set(tokens[:4]) <= {0, 1, 2}
    assert set(tokens[4:]) <= {0, 1, 2, 3, 4}
    agree(logits, requests)


def test_tokens_that_cannot_be_are_never_sampled() -> None:
    logits = torch.full((64, 4100), float("-inf"))
    logits[:, 17] = 0.0
    logits[:, 4099] = 0.0
    tokens, logprobs = sampled(logits, [SamplingParams(seed=seed) for seed in range(64)], 0)
    assert set(tokens) == {17, 4099}
    assert logprobs == pytest.approx([-0.6931472] * 64)


def test_broken_logits_are_told_by_their_log_probability() -> None:
    tokens, logprobs = sampled(torch.full((1, 50), float("nan")), [SamplingParams()], 0)
    assert 0 <= tokens[0] < 50
    assert logprobs[0] != logprobs[0]


def test_frequencies_follow_the_probabilities() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]]).log_softmax(-1).expand(4000, 3).contiguous()
    tokens, _ = sampled(logits, [SamplingParams(seed=seed) for seed in range(4000)], 0)
    seen = torch.bincount(torch.tensor(tokens), minlength=3) / 4000
    assert seen.tolist() == pytest.approx(logits[0].exp().tolist(), abs=0.03)


def test_what_was_sampled_becomes_the_input_of_the_next_step() -> None:
    """Row 1 is at the last position that the model knows: its context grows, its position stays. Row 2 is behind an
    image of 16 tokens that advanced the text by 4."""
    next_tokens = torch.tensor([[50, 51, 52], [5, 15, 8]], device=DEVICE)
    contexts = torch.tensor([6, 16, 21], dtype=torch.int32, device=DEVICE)
    sampled_tokens = torch.tensor([[1, 2, 3], [33, 44, 55]], dtype=torch.int32, device=DEVICE)
    step = torch.tensor([1], dtype=torch.int32, device=DEVICE)
    advance(sampled_tokens, step, next_tokens, contexts, last_position=15)
    assert next_tokens.tolist() == [[33, 44, 55], [6, 15, 9]]
    assert contexts.tolist() == [7, 17, 22]
