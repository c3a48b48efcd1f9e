"""A step as arrays: the tokens of all requests in one flat row, and where their keys and values are.

Letters: T new tokens, R requests.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agent_r1.engines.local.blocks import BLOCK_SIZE
from agent_r1.engines.local.cpu.attention import AttentionGroup, attention_groups
from agent_r1.engines.local.images.prompt_images import StepImages, step_images
from agent_r1.engines.local.request import Chunk
from agent_r1.images import FIRST_IMAGE_ID
from agent_r1.models import round_up

ROW_MULTIPLE = 16
"""The flat row and the rows of logits are padded to a multiple of this. On CPU matrix libraries switch kernels below
it, and logits would depend on batch composition (not batch-invariant); on CUDA tensor cores need it."""

IntTable = np.ndarray[tuple[int, int], np.dtype[Any]]
IntRow = np.ndarray[tuple[int], np.dtype[Any]]


@dataclass(frozen=True, kw_only=True)
class PagedBatch:
    """Passed through the model as the keyword `paged` to every attention layer."""

    slot_mapping: Tensor | None
    """[T] int64: the slot each new token is written to, block * BLOCK_SIZE + offset; padding goes to the spare block.
    None in a burst: decoding on CUDA derives the slot from the block table and the context length."""
    block_tables: Tensor
    """[R, maximum blocks] int32: each request's blocks in order, then the spare block."""
    context_lengths: Tensor
    """[R] int32: tokens visible to a request's last new token, including itself."""
    query_starts: Tensor
    """[R + 1] int32: request r's new tokens are rows `query_starts[r]` to `query_starts[r + 1]`."""
    positions: Tensor
    """[T] int64: each new token's position in its request, as the rotary embedding counts it."""
    max_query_length: int
    """Maximum number of new tokens of a request; 1 when every request decodes."""
    groups: tuple[AttentionGroup, ...] = field(default=())
    """CPU: requests of similar shape, computed together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """The inputs of one forward pass."""

    token_ids: Tensor
    """[T] int64."""
    batch: PagedBatch
    logit_rows: Tensor
    """Rows of the flat row whose logits are computed: those of the chunks that sample come first, in order."""
    images: StepImages | None = None
    """The image tokens of the step; None without any."""


@dataclass(frozen=True, kw_only=True)
class StepArrays:
    """The inputs of a step on the host, as NumPy arrays."""

    tokens: IntTable
    """[3, T] int64: ids, positions, slots."""
    tables: IntTable
    """[R, maximum blocks] int32."""
    ends: IntRow
    """[R]: context lengths."""
    query_starts: IntRow
    """[R + 1]."""
    logit_rows: IntRow
    """As in `StepInputs`."""
    num_samples: int
    """Logit rows that are sampled from; the others are padding."""
    max_query_length: int
    """As in `PagedBatch`."""
    images: StepImages | None
    """As in `StepInputs`."""


def step_arrays(
    chunks: Sequence[Chunk],
    *,
    num_tokens: int = 0,
    num_requests: int = 0,
    num_columns: int = 0,
    reads_images: bool = False,
) -> StepArrays:
    """Chunks as arrays, padded to at least this many tokens, requests and columns of the block table.

    A request in blocks 7 and 3 that computes tokens 15 and 16 gets positions [15, 16], slots [7 * 16 + 15, 3 * 16],
    block table [7, 3] and context length 17. Padding tokens belong to no request and go to the spare block; padding
    requests have no tokens.
    """
    count = len(chunks)
    lengths, ends = np.zeros((2, max(num_requests, count)), dtype=np.int64)
    lengths[:count] = [chunk.length for chunk in chunks]
    ends[:count] = [chunk.end for chunk in chunks]
    query_starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=query_starts[1:])
    total = int(query_starts[-1])
    tables = block_tables(chunks, num_requests, num_columns)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    tokens = np.zeros((3, max(num_tokens, round_up(total, ROW_MULTIPLE))), dtype=np.int64)
    token_ids, positions, slots = tokens
    token_ids[:total] = _token_ids(chunks, total)
    positions[:total] = np.arange(total) - query_starts[owner] + (ends - lengths)[owner]
    slots[:] = np.arange(len(slots)) % BLOCK_SIZE  # padding: slots of the spare block
    place = positions[:total]
    slots[:total] = tables[owner, place // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + place % BLOCK_SIZE
    images = step_images(chunks, query_starts, positions) if reads_images else None
    sampling = query_starts[1 : count + 1][[chunk.samples for chunk in chunks]] - 1
    logit_rows = np.zeros(max(num_requests, round_up(len(sampling), ROW_MULTIPLE)), dtype=np.int64)
    logit_rows[: len(sampling)] = sampling
    return StepArrays(
        tokens=tokens,
        tables=tables,
        ends=ends,
        query_starts=query_starts,
        logit_rows=logit_rows,
        num_samples=len(sampling),
        max_query_length=int(lengths.max()),
        images=images,
    )


def _token_ids(chunks: Sequence[Chunk], total: int) -> IntRow:
    """The tokens that chunks compute; image tokens are 0, which no one reads."""
    rows = [chunk.request.tokens[chunk.start : chunk.end] for chunk in chunks]
    try:
        return int_row(rows, total)
    except struct.error:
        ids = np.fromiter(chain.from_iterable(rows), np.int64, total)
        return np.where(ids >= FIRST_IMAGE_ID, 0, ids)


def step_inputs(chunks: Sequence[Chunk], device: torch.device, *, reads_images: bool = False) -> StepInputs:
    """The chunks of a step as tensors."""
    # Compilers specialise on a size of 1: on CUDA a single request or block is padded to 2.
    minimum = 1 if device.type == "cpu" else 2
    arrays = step_arrays(chunks, num_requests=minimum, num_columns=minimum, reads_images=reads_images)
    tokens = torch.from_numpy(arrays.tokens).to(device)
    batch = PagedBatch(
        slot_mapping=tokens[2],
        block_tables=torch.from_numpy(arrays.tables).to(device),
        context_lengths=torch.from_numpy(arrays.ends.astype(np.int32)).to(device),
        query_starts=torch.from_numpy(arrays.query_starts.astype(np.int32)).to(device),
        positions=tokens[1],
        max_query_length=arrays.max_query_length,
        groups=attention_groups(arrays.tables, arrays.ends, arrays.query_starts) if device.type == "cpu" else (),
    )
    return StepInputs(
        token_ids=tokens[0],
        batch=batch,
        logit_rows=torch.from_numpy(arrays.logit_rows).to(device),
        images=arrays.images,
    )


def block_tables(chunks: Sequence[Chunk], rows: int = 0, columns: int = 0) -> IntTable:
    """[R, maximum blocks], or larger: SPARE_BLOCK, which is 0, behind a request's last block."""
    counts = np.array([len(chunk.request.blocks) for chunk in chunks])
    blocks = int_row([chunk.request.blocks for chunk in chunks], int(counts.sum()))
    tables = np.zeros((max(rows, len(chunks)), max(columns, int(counts.max()))), dtype=np.int32)
    tables[: len(chunks)][np.arange(tables.shape[1]) < counts[:, None]] = blocks
    return tables


def int_row(lists: Iterable[Sequence[int]], total: int) -> IntRow:
    """Lists of `total` ints one after another, as int32. Packing takes a third of the time of `np.fromiter`.

    >>> int_row([[1, 2], [3]], 3).tolist()
    [1, 2, 3]
    """
    return np.frombuffer(struct.pack(f"{total}i", *chain.from_iterable(lists)), np.intc)
