"""What one step computes, as arrays: the tokens of all requests in one flat row, and where their keys and values are.

Letters: T new tokens, R requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from agent_r1.engines.local.blocks import BLOCK_SIZE
from agent_r1.engines.local.cpu_attention import AttentionGroup, attention_groups
from agent_r1.engines.local.scheduler import Chunk

ROW_MULTIPLE = 16
"""On CPU the flat row and the rows of logits are padded to a multiple of this: below it matrix libraries switch
kernels, and a token's result would depend on how many others are in its step."""

LayerCache = tuple[Tensor, Tensor]
"""Keys and values of one layer, each [blocks, BLOCK_SIZE, kv heads, head size]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedBatch:
    """Travels through the model as the keyword `paged` and reaches every attention layer."""

    caches: tuple[LayerCache, ...]
    """One per layer, by `layer_idx`."""
    slot_mapping: Tensor
    """[T] int64: block * BLOCK_SIZE + offset where each new token is written; padding goes to the spare block."""
    block_tables: Tensor
    """[R, most blocks] int32: each request's blocks in order, then the spare block."""
    context_lengths: Tensor
    """[R] int32: tokens visible to a request's last new token, itself among them."""
    query_starts: Tensor
    """[R + 1] int32: request r's new tokens are rows `query_starts[r]` to `query_starts[r + 1]`."""
    positions: Tensor
    """[T] int64: each new token's place in its request."""
    max_query_length: int
    """The most new tokens of one request; 1 when every request decodes."""
    groups: tuple[AttentionGroup, ...] = field(default=())
    """CPU: requests of similar shape, computed together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """All that one forward pass takes."""

    token_ids: Tensor
    """[T] int64."""
    batch: PagedBatch
    logit_rows: Tensor
    """Rows of the flat row whose logits are wanted: those of the chunks that sample come first, in order."""


def padded(count: int, multiple: int) -> int:
    """The next multiple.

    >>> padded(1, 16), padded(16, 16), padded(17, 16)
    (16, 16, 32)
    """
    return -(-count // multiple) * multiple


def step_inputs(chunks: list[Chunk], caches: tuple[LayerCache, ...], device: torch.device) -> StepInputs:
    """Chunks as arrays.

    A request in blocks 7 and 3 that computes tokens 15 and 16 gets positions [15, 16], slots [7 * 16 + 15, 3 * 16],
    block table [7, 3] and context length 17.
    """
    on_cpu = device.type == "cpu"
    lengths = np.array([chunk.length for chunk in chunks], dtype=np.int64)
    ends = np.array([chunk.end for chunk in chunks], dtype=np.int64)
    query_starts = np.zeros(len(chunks) + 1, dtype=np.int64)
    np.cumsum(lengths, out=query_starts[1:])
    num_tokens = int(query_starts[-1])
    num_rows = padded(num_tokens, ROW_MULTIPLE) if on_cpu else num_tokens
    tables = _block_tables(chunks)
    owner = np.repeat(np.arange(len(chunks)), lengths)
    token_ids, positions = np.zeros((2, num_rows), dtype=np.int64)
    token_ids[:num_tokens] = np.fromiter(
        chain.from_iterable(chunk.request.tokens[chunk.start : chunk.end] for chunk in chunks), np.int64, num_tokens
    )
    positions[:num_tokens] = np.arange(num_tokens) - query_starts[owner] + (ends - lengths)[owner]
    slots = np.arange(num_rows, dtype=np.int64) % BLOCK_SIZE  # padding: somewhere in the spare block
    placed = positions[:num_tokens]
    slots[:num_tokens] = tables[owner, placed // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + placed % BLOCK_SIZE
    sampling = query_starts[1:][[chunk.samples for chunk in chunks]] - 1
    logit_rows = np.zeros(padded(len(sampling), ROW_MULTIPLE) if on_cpu else len(sampling), dtype=np.int64)
    logit_rows[: len(sampling)] = sampling
    batch = PagedBatch(
        caches=caches,
        slot_mapping=torch.from_numpy(slots).to(device),
        block_tables=torch.from_numpy(tables).to(device),
        context_lengths=torch.from_numpy(ends.astype(np.int32)).to(device),
        query_starts=torch.from_numpy(query_starts.astype(np.int32)).to(device),
        positions=torch.from_numpy(positions).to(device),
        max_query_length=int(lengths.max()),
        groups=attention_groups(tables, ends, query_starts) if on_cpu else (),
    )
    return StepInputs(
        token_ids=torch.from_numpy(token_ids).to(device),
        batch=batch,
        logit_rows=torch.from_numpy(logit_rows).to(device),
    )


def _block_tables(chunks: list[Chunk]) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """[R, most blocks]: SPARE_BLOCK, which is 0, where a request has no more."""
    counts = np.array([len(chunk.request.blocks) for chunk in chunks])
    held = np.fromiter(chain.from_iterable(chunk.request.blocks for chunk in chunks), np.int32, int(counts.sum()))
    tables = np.zeros((len(chunks), int(counts.max())), dtype=np.int32)
    tables[np.arange(tables.shape[1]) < counts[:, None]] = held
    return tables
