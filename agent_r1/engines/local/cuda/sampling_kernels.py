"""Sampling on CUDA: the same result as `sampling.sample`, in two or four kernels that never wait for the host.

A row of logits is summarised in chunks (largest value, its index, sum of exponentials). Then one program per row finds
the chunk that its uniform number falls into, and the token in that chunk. Two levels keep float32 sums exact enough for
a large vocabulary. Top-k and top-p first find the lowest value that is kept, by bisection over the bit patterns of the
values, and how many values equal to it are kept; then the chunks are summarised again over what is kept.

    sample(logits, settings, step, results)

Greedy rows and ties take the lowest token id, as on CPU. tests/cuda/test_sampling_kernels.py compares both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agent_r1.engines.local.cuda.triton_compat import constexpr, kernel, next_power_of_2, tensor, tl

CHUNK = 4096
"""Logits per program."""


@dataclass(frozen=True, kw_only=True)
class SampleSettings:
    """The sampling parameters of each row; rows are requests."""

    temperatures: Tensor
    """[R] float32; 0 is greedy."""
    top_k: Tensor
    """[R] int32; 0 keeps all."""
    top_p: Tensor
    """[R] float32; 1 keeps all."""
    uniforms: Tensor
    """[R, steps] float32 in [0, 1): column `step` is used in that step."""

    @classmethod
    def empty(cls, steps: int, rows: int, device: torch.device) -> SampleSettings:
        """Greedy rows, filled later."""
        return cls(
            temperatures=torch.zeros(rows, device=device),
            top_k=torch.zeros(rows, dtype=torch.int32, device=device),
            top_p=torch.ones(rows, device=device),
            uniforms=torch.zeros(rows, steps, device=device),
        )

    def first(self, rows: int) -> SampleSettings:
        """A view of the first rows."""
        return SampleSettings(
            temperatures=self.temperatures[:rows],
            top_k=self.top_k[:rows],
            top_p=self.top_p[:rows],
            uniforms=self.uniforms[:rows],
        )

    def fill(self, table: Tensor) -> None:
        """Copy from a table [R, 3 + steps]: temperature, top-p, top-k, and the uniform numbers."""
        for target, column in ((self.temperatures, 0), (self.top_p, 1), (self.top_k, 2)):
            target.copy_(table[:, column])
        self.uniforms.copy_(table[:, 3:])


@dataclass(frozen=True, kw_only=True)
class SampleResults:
    """The sampled tokens of each step."""

    tokens: Tensor
    """[steps, R] int32."""
    logprobs: Tensor
    """[steps, R] float32, under softmax(logits / temperature), before top-k and top-p."""

    @classmethod
    def empty(cls, steps: int, rows: int, device: torch.device) -> SampleResults:
        """Zeros, written by `sample`."""
        return cls(
            tokens=torch.zeros(steps, rows, dtype=torch.int32, device=device),
            logprobs=torch.zeros(steps, rows, device=device),
        )

    def first(self, rows: int, steps: int | None = None) -> SampleResults:
        """A view of the first rows (and steps)."""
        return SampleResults(tokens=self.tokens[:steps, :rows], logprobs=self.logprobs[:steps, :rows])


def sample(logits: Tensor, settings: SampleSettings, step: Tensor, results: SampleResults, *, restricted: bool) -> None:
    """Sample one token per row of `logits` [R, vocabulary] into row `step` (an int32 on the device) of the results.

    `restricted` says whether any row has a top-k or a top-p; that reads the logits about thirty times.
    """
    rows, vocabulary = logits.shape
    num_chunks = -(-vocabulary // CHUNK)
    peaks = logits.new_empty((rows, num_chunks), dtype=torch.float32)
    totals, argmaxes = torch.empty_like(peaks), torch.empty_like(peaks, dtype=torch.int32)
    shape = {"VOCABULARY": vocabulary, "CHUNK": CHUNK, "CHUNKS_PADDED": next_power_of_2(num_chunks)}
    bounds = torch.empty((rows, 2), dtype=torch.int32, device=logits.device)
    kept_peaks, kept_totals = peaks, totals
    summarise_kernel[(rows, num_chunks)](
        logits, settings.temperatures, bounds, peaks, totals, argmaxes, logits.stride(0),
        VOCABULARY=vocabulary, CHUNK=CHUNK, RESTRICTED=False, num_warps=8,
    )  # fmt: skip
    if restricted:
        kept_peaks, kept_totals = torch.empty_like(peaks), torch.empty_like(peaks)
        bound_kernel[(rows,)](
            logits, settings.temperatures, settings.top_k, settings.top_p, peaks, totals, bounds, logits.stride(0),
            **shape, num_warps=8,
        )  # fmt: skip
        summarise_kernel[(rows, num_chunks)](
            logits, settings.temperatures, bounds, kept_peaks, kept_totals, torch.empty_like(argmaxes),
            logits.stride(0), VOCABULARY=vocabulary, CHUNK=CHUNK, RESTRICTED=True, num_warps=8,
        )  # fmt: skip
    sample_kernel[(rows,)](
        logits, settings.temperatures, settings.uniforms, step, bounds, peaks, totals, argmaxes, kept_peaks,
        kept_totals, results.tokens, results.logprobs, logits.stride(0), settings.uniforms.stride(0),
        results.tokens.stride(0), **shape, RESTRICTED=restricted, num_warps=8,
    )  # fmt: skip


def advance(sampled: Tensor, step: Tensor, next_tokens: Tensor, contexts: Tensor, *, last_position: int) -> None:
    """Make row `step` of `sampled` [steps, R] the input of the next step, in place.

    `next_tokens` [2, R] are token ids and positions: after position 15 of a request its sampled token gets position 16,
    and a context of 16 grows to 17. The two differ behind images, which advance the text by less than their number of
    tokens. Positions stop at the last one the model supports: a request that is at its end may be computed further with
    its batch, and the result is thrown away.
    """
    rows = next_tokens.shape[1]
    advance_kernel[(-(-rows // 128),)](
        sampled, step, next_tokens, contexts, sampled.stride(0), next_tokens.stride(0), rows, last_position,
        ROWS=128, num_warps=4,
    )  # fmt: skip


@kernel
def advance_kernel(
    sampled: tensor, steps: tensor, next_tokens: tensor, contexts: tensor, sampled_stride: tensor, next_stride: tensor,
    num_rows: tensor, last_position: tensor, ROWS: constexpr,
) -> None:  # fmt: skip
    """One program: some rows."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < num_rows
    step = tl.load(steps).to(tl.int64)
    token = tl.load(sampled + step * sampled_stride + row, mask=inside, other=0)
    position = tl.load(next_tokens + next_stride + row, mask=inside, other=0) + 1
    tl.store(next_tokens + row, token.to(tl.int64), mask=inside)
    tl.store(next_tokens + next_stride + row, tl.minimum(position, last_position), mask=inside)
    context = tl.load(contexts + row, mask=inside, other=0)
    tl.store(contexts + row, context + 1, mask=inside)


@kernel
def scaled_chunk(
    logits: tensor, row: tensor, temperature: tensor, stride: tensor, start: tensor,
    VOCABULARY: constexpr, CHUNK: constexpr,
) -> Any:  # fmt: skip
    """Columns of a chunk and their values divided by the temperature (1 if greedy); -inf beyond the vocabulary."""
    columns = start + tl.arange(0, CHUNK)
    values = tl.load(logits + row * stride + columns, mask=columns < VOCABULARY, other=float("-inf")).to(tl.float32)
    return columns, values / tl.where(temperature > 0, temperature, 1.0)


@kernel
def ordered(values: tensor) -> tensor:
    """Integers in the same order as the values: the bits of a float, flipped for negative values."""
    bits = (values + 0.0).to(tl.int32, bitcast=True)  # -0 is 0
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@kernel
def kept(values: tensor, columns: tensor, bounds: tensor, row: tensor) -> tensor:
    """Whether top-k and top-p keep a token: values above the bound, and values equal to it up to the last kept
    column."""
    bound, last = tl.load(bounds + row * 2), tl.load(bounds + row * 2 + 1)
    order = ordered(values)
    return (order > bound) | ((order == bound) & (columns <= last))


@kernel
def summarise_kernel(
    logits: tensor, temperatures: tensor, bounds: tensor, peaks: tensor, totals: tensor, argmaxes: tensor,
    stride: tensor, VOCABULARY: constexpr, CHUNK: constexpr, RESTRICTED: constexpr,
) -> None:  # fmt: skip
    """One program: the largest value of a chunk, its column, and the sum of exponentials relative to it."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    temperature = tl.load(temperatures + row)
    columns, values = scaled_chunk(logits, row, temperature, stride, chunk * CHUNK, VOCABULARY, CHUNK)
    if RESTRICTED:
        values = tl.where(kept(values, columns, bounds, row), values, float("-inf"))
    peak = tl.max(values, 0)
    anchor = tl.where(peak == float("-inf"), 0.0, peak)
    entry = row * tl.num_programs(1) + chunk
    tl.store(peaks + entry, peak)
    tl.store(totals + entry, tl.sum(tl.exp(values - anchor), 0))
    tl.store(argmaxes + entry, tl.min(tl.where(values == peak, columns, VOCABULARY), 0))


@kernel
def load_weights(
    peaks: tensor, totals: tensor, row: tensor, largest: tensor,
    VOCABULARY: constexpr, CHUNK: constexpr, CHUNKS_PADDED: constexpr,
) -> Any:  # fmt: skip
    """Sums of exponentials of all chunks of a row, relative to `largest`."""
    NUM_CHUNKS: constexpr = (VOCABULARY + CHUNK - 1) // CHUNK
    chunks = tl.arange(0, CHUNKS_PADDED)
    inside = chunks < NUM_CHUNKS
    peak = tl.load(peaks + row * NUM_CHUNKS + chunks, mask=inside, other=float("-inf"))
    return tl.load(totals + row * NUM_CHUNKS + chunks, mask=inside, other=0.0) * tl.exp(peak - largest)


@kernel
def largest_of(
    peaks: tensor, row: tensor, VOCABULARY: constexpr, CHUNK: constexpr, CHUNKS_PADDED: constexpr
) -> Any:  # fmt: skip
    """The largest value of a row."""
    NUM_CHUNKS: constexpr = (VOCABULARY + CHUNK - 1) // CHUNK
    chunks = tl.arange(0, CHUNKS_PADDED)
    return tl.max(tl.load(peaks + row * NUM_CHUNKS + chunks, mask=chunks < NUM_CHUNKS, other=float("-inf")), 0)


@kernel
def bound_kernel(
    logits: tensor, temperatures: tensor, top_ks: tensor, top_ps: tensor, peaks: tensor, totals: tensor,
    bounds: tensor, stride: tensor, VOCABULARY: constexpr, CHUNK: constexpr, CHUNKS_PADDED: constexpr,
) -> None:  # fmt: skip
    """One program per row: the lowest kept value (as an ordered integer) and the last kept column among equal values.

    A token is kept when fewer than top-k tokens and less than top-p of the mass come before it; equal values are
    ordered by token id.
    """
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + row)
    top_k, top_p = tl.load(top_ks + row), tl.load(top_ps + row)
    lowest = tl.full([], -2147483648, tl.int64)
    last = tl.full([], VOCABULARY, tl.int32)
    if (top_k > 0) | (top_p < 1.0):
        max_kept = tl.where(top_k > 0, top_k, VOCABULARY)
        mass = tl.where(top_p < 1.0, top_p, float("inf"))
        largest = largest_of(peaks, row, VOCABULARY, CHUNK, CHUNKS_PADDED)
        total = tl.sum(load_weights(peaks, totals, row, largest, VOCABULARY, CHUNK, CHUNKS_PADDED), 0)
        highest = ordered(largest).to(tl.int64)
        num_above, mass_above = tl.full([], 0, tl.int32), tl.full([], 0.0, tl.float32)
        # Find the lowest bound above which there are fewer than `max_kept` tokens with less than `mass`. No token is
        # above the largest value, so the search always ends at or below it.
        while lowest < highest:
            middle = (lowest + highest) >> 1
            num, amount = tl.full([], 0, tl.int32), tl.full([], 0.0, tl.float32)
            for start in range(0, VOCABULARY, CHUNK):
                _, values = scaled_chunk(logits, row, temperature, stride, start, VOCABULARY, CHUNK)
                above = ordered(values).to(tl.int64) > middle
                num += tl.sum(above.to(tl.int32), 0)
                amount += tl.sum(tl.where(above, tl.exp(values - largest), 0.0), 0)
            if (num < max_kept) & (amount / total < mass):
                highest = middle
                num_above, mass_above = num, amount / total
            else:
                lowest = middle + 1
        # Of the values equal to the bound keep as many as still fit, in the order of their ids.
        value_bits = lowest.to(tl.int32)
        value = (value_bits ^ ((value_bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
        share = tl.exp(value - largest) / total
        room = (max_kept - num_above).to(tl.float32)
        if top_p < 1.0:
            room = tl.minimum(room, tl.maximum(tl.ceil((top_p - mass_above) / share), 1.0))
        seen = tl.full([], 0, tl.int32)
        last = tl.full([], -1, tl.int32)
        for start in range(0, VOCABULARY, CHUNK):
            columns, values = scaled_chunk(logits, row, temperature, stride, start, VOCABULARY, CHUNK)
            equal = (ordered(values).to(tl.int64) == lowest).to(tl.int32)
            rank = seen + tl.cumsum(equal, 0)
            last = tl.maximum(last, tl.max(tl.where((equal > 0) & (rank.to(tl.float32) <= room), columns, -1), 0))
            seen += tl.sum(equal, 0)
    tl.store(bounds + row * 2, lowest.to(tl.int32))
    tl.store(bounds + row * 2 + 1, last)


@kernel
def sample_kernel(
    logits: tensor, temperatures: tensor, uniforms: tensor, steps: tensor, bounds: tensor, peaks: tensor,
    totals: tensor, argmaxes: tensor, kept_peaks: tensor, kept_totals: tensor, tokens: tensor, logprobs: tensor,
    stride: tensor, uniform_stride: tensor, result_stride: tensor,
    VOCABULARY: constexpr, CHUNK: constexpr, CHUNKS_PADDED: constexpr, RESTRICTED: constexpr,
) -> None:  # fmt: skip
    """One program per row: find the chunk, find the token in it, write its log-probability."""
    NUM_CHUNKS: constexpr = (VOCABULARY + CHUNK - 1) // CHUNK
    row = tl.program_id(0).to(tl.int64)
    step = tl.load(steps).to(tl.int64)
    temperature = tl.load(temperatures + row)
    largest = largest_of(peaks, row, VOCABULARY, CHUNK, CHUNKS_PADDED)
    log_total = largest + tl.log(tl.sum(load_weights(peaks, totals, row, largest, VOCABULARY, CHUNK, CHUNKS_PADDED), 0))
    chunks = tl.arange(0, CHUNKS_PADDED)
    if temperature > 0:
        weights = load_weights(kept_peaks, kept_totals, row, largest, VOCABULARY, CHUNK, CHUNKS_PADDED)
        cumulative = tl.cumsum(weights, 0)
        target = tl.load(uniforms + row * uniform_stride + step) * tl.max(cumulative, 0)
        # The first chunk whose cumulative weight exceeds the target; rounding may leave none, then the last with
        # weight.
        chunk = tl.min(tl.where((cumulative > target) & (weights > 0), chunks, CHUNKS_PADDED), 0)
        last_chunk = tl.max(tl.where(weights > 0, chunks, 0), 0)
        chunk = tl.minimum(chunk, last_chunk)
        before = tl.sum(tl.where(chunks == chunk, cumulative - weights, 0.0), 0)
        columns, values = scaled_chunk(logits, row, temperature, stride, chunk * CHUNK, VOCABULARY, CHUNK)
        if RESTRICTED:
            values = tl.where(kept(values, columns, bounds, row), values, float("-inf"))
        shares = tl.exp(values - largest)
        reached = tl.cumsum(shares, 0)
        token = tl.min(tl.where((reached > target - before) & (shares > 0), columns, VOCABULARY), 0)
        token = tl.minimum(token, tl.max(tl.where(shares > 0, columns, 0), 0))
    else:
        inside = chunks < NUM_CHUNKS
        peak = tl.load(peaks + row * NUM_CHUNKS + chunks, mask=inside, other=float("-inf"))
        argmax = tl.load(argmaxes + row * NUM_CHUNKS + chunks, mask=inside, other=VOCABULARY)
        token = tl.min(tl.where(peak == largest, argmax, VOCABULARY), 0)
    token = tl.minimum(token, VOCABULARY - 1)  # a row of NaN has no largest value
    value = tl.load(logits + row * stride + token).to(tl.float32) / tl.where(temperature > 0, temperature, 1.0)
    tl.store(tokens + step * result_stride + row, token)
    tl.store(logprobs + step * result_stride + row, value - log_total)
