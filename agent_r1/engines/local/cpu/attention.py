"""Paged attention on CPU: gather each request's blocks, then one SDPA call for requests of similar shape.

It is batch-invariant: a token's result is the same, bit for bit, whether it is computed alone or with others, in a
chunk or by itself, over a short or a longer table, for two reasons. Later keys are masked with minus infinity and so
add exactly 0, however many there are. And each matrix product has at least QUERY_MULTIPLE query rows, because below
that matrix libraries use kernels that add in another order; a decoding request fills the rows with the query heads that
share its key head, and with zeros.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from agent_r1.engines.local.blocks import BLOCK_SIZE, blocks_for
from agent_r1.models import round_up

QUERY_MULTIPLE = 8
"""Query rows of one matrix product are padded to a multiple of this."""
SHORT_TABLE = 8
"""Requests with up to this many blocks count as equally long: another SDPA call costs more than padding does."""
MAX_BLOCKS = 1024
"""Maximum number of blocks a group gathers: it bounds the memory of the copy."""

IntArray = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionGroup:
    """Requests with similar numbers of new tokens and of blocks. G requests, Q query rows each, L keys each."""

    rows: Tensor
    """[G * Q]: rows of the flat row; a request with fewer than Q new tokens repeats its last."""
    positions: Tensor
    """[G, Q]: their positions."""
    blocks: Tensor
    """[G * L / BLOCK_SIZE]: the requests' blocks."""
    masks: dict[int | None, Tensor] = field(default_factory=dict)
    """One mask per window, made on first use."""

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """Added to the scores, [G, 1, Q, L]: a token attends to its request up to itself, within the window."""
        if window not in self.masks:
            length = self.blocks.numel() // len(self.positions) * BLOCK_SIZE
            keys, queries = torch.arange(length), self.positions[:, None, :, None]
            hidden = keys > queries
            if window is not None:
                hidden |= keys <= queries - window
            self.masks[window] = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
        return self.masks[window]


def attention_groups(tables: IntArray, ends: IntArray, query_starts: IntArray) -> tuple[AttentionGroup, ...]:
    """Group requests whose new tokens round up to the same power of two, longest contexts first.

    Two decoding requests of 40 and 100 tokens and a prompt of 70 new tokens make two groups. A decoding request of 200
    tokens is not padded to 900: it begins another group.
    """
    members: defaultdict[int, list[list[int]]] = defaultdict(list)
    num_blocks = (-(-ends // BLOCK_SIZE)).tolist()
    lengths = np.diff(query_starts).tolist()
    for request in np.argsort(-ends, kind="stable").tolist():
        groups = members[(lengths[request] - 1).bit_length()]
        longest = num_blocks[groups[-1][0]] if groups else 0
        if not groups or longest > max(SHORT_TABLE, 2 * num_blocks[request]) or longest * len(groups[-1]) >= MAX_BLOCKS:
            groups.append([])
        groups[-1].append(request)
    return tuple(_group(np.array(group), tables, ends, query_starts) for groups in members.values() for group in groups)


def _group(group: IntArray, tables: IntArray, ends: IntArray, query_starts: IntArray) -> AttentionGroup:
    starts, lengths = query_starts[group], query_starts[group + 1] - query_starts[group]
    longest = int(lengths.max())
    num_queries = 1 if longest == 1 else round_up(longest, QUERY_MULTIPLE)
    offsets = np.minimum(np.arange(num_queries), lengths[:, None] - 1)
    num_blocks = blocks_for(int(ends[group].max()))
    return AttentionGroup(
        rows=torch.from_numpy((starts[:, None] + offsets).ravel()),
        positions=torch.from_numpy((ends[group] - lengths)[:, None] + offsets),
        blocks=torch.from_numpy(tables[group, :num_blocks].ravel()),
    )


def write_kv(keys: Tensor, values: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write the new keys and values [T, kv heads, head size] to their slots."""
    key_cache.flatten(0, 1).index_copy_(0, slot_mapping, keys)
    value_cache.flatten(0, 1).index_copy_(0, slot_mapping, values)


def grouped_attention(
    queries: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    groups: tuple[AttentionGroup, ...],
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """Attention of `queries` [T, heads, head size]; 0 for padding, which is in no group."""
    attended = queries.new_zeros(*queries.shape[:2], value_cache.shape[3])
    for group in groups:
        size = len(group.positions)
        keys = key_cache.index_select(0, group.blocks).view(size, -1, *key_cache.shape[2:]).transpose(1, 2)
        values = value_cache.index_select(0, group.blocks).view(size, -1, *value_cache.shape[2:]).transpose(1, 2)
        chosen = queries.index_select(0, group.rows).view(*group.positions.shape, *queries.shape[1:])
        mask = group.mask(window, queries.dtype)
        attend = _attend_decode if chosen.shape[1] == 1 else _attend_chunk
        result = attend(chosen, keys, values, mask, scale=scale, softcap=softcap)
        attended.index_copy_(0, group.rows, result.flatten(0, 1))
    return attended


def _attend_decode(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, *, scale: float, softcap: float | None
) -> Tensor:
    """[G, 1, heads, size]: heads that share a key head are the rows of one product."""
    num_requests, _, num_heads, size = queries.shape
    num_key_heads = keys.shape[1]
    shared = num_heads // num_key_heads
    rows = queries.new_zeros(num_requests, num_key_heads, round_up(shared, QUERY_MULTIPLE), size)
    rows[:, :, :shared] = queries.view(num_requests, num_key_heads, shared, size)
    mask = mask.expand(-1, -1, rows.shape[2], -1)
    attended = _attend(rows, keys, values, mask, scale=scale, softcap=softcap)
    return attended[:, :, :shared].reshape(num_requests, 1, num_heads, values.shape[3])


def _attend_chunk(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, *, scale: float, softcap: float | None
) -> Tensor:
    """[G, Q, heads, size]."""
    return _attend(queries.transpose(1, 2), keys, values, mask, scale=scale, softcap=softcap).transpose(1, 2)


def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, *, scale: float, softcap: float | None
) -> Tensor:
    """Attention over [G, heads, rows, size]: SDPA, except for capped scores, which SDPA does not support."""
    if softcap is None:
        return functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, scale=scale, enable_gqa=queries.shape[1] != keys.shape[1]
        )
    shared = queries.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(shared, dim=1), values.repeat_interleave(shared, dim=1)
    scores = torch.tanh(queries @ keys.transpose(2, 3) * (scale / softcap)) * softcap + mask
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype) @ values
