"""Attention over a paged KV cache on CUDA: Triton kernels behind three custom operators.

The cache of one layer is two tensors [num_blocks, block_size, kv_heads, dim]. A request owns the blocks named by its
row of `block_tables`, in order: its token `i` lies in block `table[i // block_size]` at offset `i % block_size`.

    write_kv            write new keys and values to their slots
    prefill_attention   many query tokens per request, packed; compute-bound
    decode_attention    one query token per request; memory-bound. First writes the token's own key and value to the
                        slot given by block table and length

Query heads that share a key-value head (GQA) are rows of one tile, so each key and value is read once for all of them.
Softmax runs online (Milakov and Gimelshein 2018; Dao 2023, FlashAttention-2) in base 2; sums are float32, and weights
are rounded to the cache's type before they are multiplied with the values, as FlashAttention does. Long contexts of few
requests are split over several programs and merged by a second kernel (flash-decoding); how many depends on shapes
only, never on lengths, so a captured CUDA graph stays valid as lengths grow, and nothing here waits for the device. A
row's result does not depend on the contents of other rows, only on the number of rows (the split).

Not supported: fp8 caches, trees of draft tokens, attention sinks, backward passes. The operators are opaque to
`torch.compile`, so a compiled decoder layer stays one graph. tests/cuda/test_kernels.py has a reference of each in
plain torch. Without triton this file still imports; only a launch fails.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from agent_r1.engines.local.cuda.launch_config import constants, decode_launch, padded_dim, prefill_launch
from agent_r1.engines.local.cuda.triton_compat import (
    HAS_TRITON,
    constexpr,
    kernel,
    next_power_of_2,
    operator,
    tensor,
    tl,
)
from agent_r1.errors import EngineError

# --- device code -----------------------------------------------------------------------------------------------------
# Arguments in capitals are compile-time constants: floats because inductor would pass them as float64, shapes because
# they fold masks and divisions. WINDOW and SOFTCAP are 0 when there is none. -1e30 stands for minus
# infinity: the difference of two of them is 0, not NaN.


@kernel
def load_rows(base: tensor, rows: tensor, readable: tensor, DIM: constexpr, DIM_PADDED: constexpr) -> Any:
    """Rows of `DIM` elements as a tile [rows, DIM_PADDED]; rows that are not readable are 0, whatever is in memory."""
    dims = tl.arange(0, DIM_PADDED)
    mask = readable[:, None]
    if DIM != DIM_PADDED:
        mask = mask & (dims < DIM)[None, :]
    return tl.load(base + rows[:, None] + dims[None, :], mask=mask, other=0.0)


@kernel
def capped(scores: tensor, SOFTCAP: constexpr) -> tensor:
    """Soft-capped scores: tanh(x) = 1 - 2 / (1 + 2^(2 log2(e) x))."""
    return SOFTCAP * (1.0 - 2.0 / (1.0 + tl.exp2(scores * (2.8853900817779268 / SOFTCAP))))


@kernel
def attend(
    queries: tensor, positions: tensor, keys: tensor, values: tensor, table: tensor, first: tensor, last: tensor,
    weighted: tensor, peak: tensor, total: tensor, stride_block: tensor, stride_token: tensor,
    SCALE: constexpr, WINDOW: constexpr, SOFTCAP: constexpr, DIM: constexpr, DIM_PADDED: constexpr,
    BLOCK_SIZE: constexpr, BLOCK_N: constexpr, MASKED: constexpr,
) -> Any:  # fmt: skip
    """Fold tokens [first, last) into each row's (weighted sum of values, highest score, total weight): online softmax.

    A row attends to tokens up to its position, within the window. Where all rows attend to all tokens and the tokens
    fill whole tiles, `MASKED` can be off.
    """
    for start in range(first, last, BLOCK_N):
        tokens = start + tl.arange(0, BLOCK_N)
        readable = tokens < last
        blocks = tl.load(table + tokens // BLOCK_SIZE, mask=readable, other=0)
        rows = blocks.to(tl.int64) * stride_block + (tokens % BLOCK_SIZE) * stride_token  # may exceed 2^31 elements
        key_tile = load_rows(keys, rows, readable, DIM, DIM_PADDED)
        scores = tl.dot(queries, tl.trans(key_tile), input_precision="ieee") * SCALE
        if SOFTCAP > 0:
            scores = capped(scores, SOFTCAP)
        if MASKED:
            visible = tokens[None, :] <= positions[:, None]
            if WINDOW > 0:
                visible = visible & (tokens[None, :] > positions[:, None] - WINDOW)
            scores = tl.where(visible, scores, -1e30)
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.exp2(scores - new_peak[:, None])
        decay = tl.exp2(peak - new_peak)
        total = total * decay + tl.sum(weights, 1)
        value_tile = load_rows(values, rows, readable, DIM, DIM_PADDED)
        weighted = tl.dot(weights.to(value_tile.dtype), value_tile, weighted * decay[:, None], input_precision="ieee")
        peak = new_peak
    return weighted, peak, total


@kernel
def copy_token(
    keys: tensor, values: tensor, key_cache: tensor, value_cache: tensor, token: tensor, block: tensor, offset: tensor,
    key_stride_token: tensor, key_stride_head: tensor, value_stride_token: tensor, value_stride_head: tensor,
    stride_block: tensor, stride_token: tensor, stride_head: tensor,
    HEADS: constexpr, DIM: constexpr, SIZE_PADDED: constexpr,
) -> None:  # fmt: skip
    """Copy one token's keys and values, all heads, to its slot in a block."""
    element = tl.arange(0, SIZE_PADDED)
    head = element // DIM
    dim = element % DIM
    inside = element < HEADS * DIM
    target = block.to(tl.int64) * stride_block + offset * stride_token + head * stride_head + dim
    key = tl.load(keys + token * key_stride_token + head * key_stride_head + dim, mask=inside)
    value = tl.load(values + token * value_stride_token + head * value_stride_head + dim, mask=inside)
    tl.store(key_cache + target, key, mask=inside)
    tl.store(value_cache + target, value, mask=inside)


@kernel
def write_kernel(
    keys: tensor, values: tensor, key_cache: tensor, value_cache: tensor, slots: tensor,
    key_stride_token: tensor, key_stride_head: tensor, value_stride_token: tensor, value_stride_head: tensor,
    stride_block: tensor, stride_token: tensor, stride_head: tensor,
    HEADS: constexpr, DIM: constexpr, BLOCK_SIZE: constexpr, SIZE_PADDED: constexpr,
) -> None:  # fmt: skip
    """One program: one token."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    if slot >= 0:
        copy_token(
            keys, values, key_cache, value_cache, token, slot // BLOCK_SIZE, slot % BLOCK_SIZE, key_stride_token,
            key_stride_head, value_stride_token, value_stride_head, stride_block, stride_token, stride_head,
            HEADS, DIM, SIZE_PADDED,
        )  # fmt: skip


@kernel
def append_kernel(
    keys: tensor, values: tensor, key_cache: tensor, value_cache: tensor, tables: tensor, contexts: tensor,
    key_stride_token: tensor, key_stride_head: tensor, value_stride_token: tensor, value_stride_head: tensor,
    stride_block: tensor, stride_token: tensor, stride_head: tensor, table_stride: tensor,
    HEADS: constexpr, DIM: constexpr, BLOCK_SIZE: constexpr, SIZE_PADDED: constexpr,
) -> None:  # fmt: skip
    """One program: the newest token of one request."""
    request = tl.program_id(0).to(tl.int64)
    newest = tl.load(contexts + request) - 1
    if newest >= 0:
        block = tl.load(tables + request * table_stride + newest // BLOCK_SIZE)
        copy_token(
            keys, values, key_cache, value_cache, request, block, newest % BLOCK_SIZE, key_stride_token,
            key_stride_head, value_stride_token, value_stride_head, stride_block, stride_token, stride_head,
            HEADS, DIM, SIZE_PADDED,
        )  # fmt: skip


@kernel
def decode_kernel(
    queries: tensor, key_cache: tensor, value_cache: tensor, tables: tensor, contexts: tensor,
    results: tensor, log_totals: tensor, query_stride_request: tensor, query_stride_head: tensor,
    stride_block: tensor, stride_token: tensor, stride_head: tensor, table_stride: tensor,
    SCALE: constexpr, WINDOW: constexpr, SOFTCAP: constexpr, GROUP: constexpr, DIM: constexpr, DIM_PADDED: constexpr,
    BLOCK_SIZE: constexpr, BLOCK_M: constexpr, BLOCK_N: constexpr, SPLITS: constexpr,
) -> None:  # fmt: skip
    """One program: one request, one key-value head with its query heads, one of `SPLITS` ranges of the context.

    With one split `results` is the attention [R, heads, dim]. With more it holds float32 parts [R, heads, splits, dim],
    each normalised by its own total, whose base-2 logarithm goes to `log_totals` [R, heads, splits].
    """
    kv_head = tl.program_id(0)
    request = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    last = tl.load(contexts + request)
    first = last * 0
    if WINDOW > 0:
        first = tl.maximum(last - WINDOW, 0)
    if SPLITS > 1:
        size = tl.cdiv(tl.cdiv(last - first, SPLITS), BLOCK_N) * BLOCK_N
        first = first + split * size
        last = tl.minimum(first + size, last)

    member = tl.arange(0, BLOCK_M)
    heads = kv_head * GROUP + member
    query_rows = request * query_stride_request + heads * query_stride_head
    query_tile = load_rows(queries, query_rows, member < GROUP, DIM, DIM_PADDED)
    weighted = tl.zeros([BLOCK_M, DIM_PADDED], tl.float32)
    peak = tl.full([BLOCK_M], -1e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    positions = tl.zeros([BLOCK_M], tl.int32) + last - 1
    weighted, peak, total = attend(
        query_tile, positions, key_cache + kv_head * stride_head, value_cache + kv_head * stride_head,
        tables + request * table_stride, first, last, weighted, peak, total, stride_block, stride_token,
        SCALE, 0, SOFTCAP, DIM, DIM_PADDED, BLOCK_SIZE, BLOCK_N, True,
    )  # fmt: skip
    divisor = tl.where(total > 0, total, 1.0)  # an empty range gives zeros
    dims = tl.arange(0, DIM_PADDED)
    result_rows = (request * tl.num_programs(0) * GROUP + heads) * SPLITS + split
    inside = (member < GROUP)[:, None] & (dims < DIM)[None, :]
    tl.store(results + result_rows[:, None] * DIM + dims[None, :], weighted / divisor[:, None], mask=inside)
    if SPLITS > 1:
        tl.store(log_totals + result_rows, tl.where(total > 0, peak + tl.log2(divisor), -1e30), mask=member < GROUP)


@kernel
def merge_kernel(
    parts: tensor, log_totals: tensor, results: tensor, DIM: constexpr, DIM_PADDED: constexpr, SPLITS: constexpr
) -> None:
    """One program merges the parts of one head of one request, weighted by their totals; empty parts give zeros."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    log_total = tl.load(log_totals + row * SPLITS + split)
    weights = tl.exp2(log_total - tl.max(log_total, 0))
    part = load_rows(parts, (row * SPLITS + split) * DIM, split < SPLITS, DIM, DIM_PADDED)
    merged = tl.sum(part * weights[:, None], 0) / tl.sum(weights, 0)
    dims = tl.arange(0, DIM_PADDED)
    tl.store(results + row * DIM + dims, merged, mask=dims < DIM)


@kernel
def prefill_kernel(
    queries: tensor, key_cache: tensor, value_cache: tensor, tables: tensor, contexts: tensor,
    query_starts: tensor, results: tensor, query_stride_token: tensor, query_stride_head: tensor,
    stride_block: tensor, stride_token: tensor, stride_head: tensor, table_stride: tensor,
    SCALE: constexpr, WINDOW: constexpr, SOFTCAP: constexpr, GROUP: constexpr, DIM: constexpr, DIM_PADDED: constexpr,
    BLOCK_SIZE: constexpr, BLOCK_M: constexpr, BLOCK_N: constexpr,
) -> None:  # fmt: skip
    """One program: one request, one key-value head, `BLOCK_M` rows of (token, query head of that key-value head).

    With a group of 3, rows 0..5 are token 0 heads 0 1 2, token 1 heads 0 1 2. No row is wasted on padding the group,
    and a short chunk still fills a tile.
    """
    top = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M  # late tiles have the most keys: they start first
    kv_head = tl.program_id(1)
    request = tl.program_id(2).to(tl.int64)
    query_start = tl.load(query_starts + request).to(tl.int32)
    length = tl.load(query_starts + request + 1).to(tl.int32) - query_start
    if top < length * GROUP:
        before = tl.load(contexts + request) - length
        row = top + tl.arange(0, BLOCK_M)
        owned = row < length * GROUP
        heads = kv_head * GROUP + row % GROUP
        query_tokens = (query_start + row // GROUP).to(tl.int64)
        query_rows = query_tokens * query_stride_token + heads * query_stride_head
        query_tile = load_rows(queries, query_rows, owned, DIM, DIM_PADDED)
        positions = before + row // GROUP
        # All rows attend to all tokens of the whole tiles in [first, middle); [middle, last) needs the mask.
        first = before * 0
        middle = (before + top // GROUP + 1) // BLOCK_N * BLOCK_N
        last = before + tl.minimum((top + BLOCK_M - 1) // GROUP + 1, length)
        if WINDOW > 0:
            first = tl.maximum(before + top // GROUP - WINDOW + 1, 0)
            middle = first
        keys = key_cache + kv_head * stride_head
        values = value_cache + kv_head * stride_head
        table = tables + request * table_stride
        weighted = tl.zeros([BLOCK_M, DIM_PADDED], tl.float32)
        peak = tl.full([BLOCK_M], -1e30, tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        if WINDOW == 0:
            weighted, peak, total = attend(
                query_tile, positions, keys, values, table, first, middle, weighted, peak, total, stride_block,
                stride_token, SCALE, WINDOW, SOFTCAP, DIM, DIM_PADDED, BLOCK_SIZE, BLOCK_N, False,
            )  # fmt: skip
        weighted, peak, total = attend(
            query_tile, positions, keys, values, table, middle, last, weighted, peak, total, stride_block,
            stride_token, SCALE, WINDOW, SOFTCAP, DIM, DIM_PADDED, BLOCK_SIZE, BLOCK_N, True,
        )  # fmt: skip
        dims = tl.arange(0, DIM_PADDED)
        result_rows = (query_tokens * tl.num_programs(1) * GROUP + heads) * DIM
        inside = owned[:, None] & (dims < DIM)[None, :]
        tl.store(results + result_rows[:, None] + dims[None, :], weighted / total[:, None], mask=inside)


# --- operators -------------------------------------------------------------------------------------------------------


def like_queries(queries: Tensor, *others: Tensor, **options: object) -> Tensor:
    """A tensor of the result's shape and type: those of the queries, laid out densely."""
    return queries.new_empty(queries.shape)


@operator(lambda *arguments: None, mutates=("key_cache", "value_cache"))
def write_kv(keys: Tensor, values: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write the keys and values [T, kv_heads, dim] of token `t` to slot_mapping[t] = block * block_size + offset.

    Negative slots are skipped: they mark the padding of a captured graph.
    """
    check_layout(key_cache, value_cache, slot_mapping)
    check_fit(keys, values, key_cache)
    tokens, heads, dim = keys.shape
    keys, values, size_padded = with_dense_rows(keys), with_dense_rows(values), next_power_of_2(heads * dim)
    write_kernel[(tokens,)](
        *(keys, values, key_cache, value_cache, slot_mapping),
        *(*keys.stride()[:2], *values.stride()[:2], *key_cache.stride()[:3]),
        HEADS=heads,
        DIM=dim,
        BLOCK_SIZE=key_cache.shape[1],
        SIZE_PADDED=size_padded,
        num_warps=max(1, min(4, size_padded // 256)),
    )


@operator(like_queries, mutates=("key_cache", "value_cache"))
def decode_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    context_lengths: Tensor,
    *,
    scale: float,
    window: Optional[int] = None,
    softcap: Optional[float] = None,
) -> Tensor:
    """Attention [R, heads, dim] of one query token per request over the first context_lengths[r] tokens of its blocks.

    The last of these is the query's own token, whose keys and values [R, kv_heads, dim] are written to its slot first.
    A request of length 0 gives zeros. `window`: only the last `window` tokens are visible. `softcap`: scores become
    softcap * tanh(scores / softcap).
    """
    check_layout(key_cache, value_cache, block_tables)
    check_fit(keys, values, key_cache)
    queries, keys, values = with_dense_rows(queries), with_dense_rows(keys), with_dense_rows(values)
    requests, heads, dim = queries.shape
    size_padded = next_power_of_2(key_cache.shape[2] * dim)
    append_kernel[(requests,)](
        *(keys, values, key_cache, value_cache, block_tables, context_lengths),
        *(*keys.stride()[:2], *values.stride()[:2], *key_cache.stride()[:3], block_tables.stride(0)),
        HEADS=key_cache.shape[2],
        DIM=dim,
        BLOCK_SIZE=key_cache.shape[1],
        SIZE_PADDED=size_padded,
        num_warps=max(1, min(4, size_padded // 256)),
    )
    launch = decode_launch(queries, key_cache, block_tables, window)
    results = like_queries(queries)
    parts, log_totals = results, results
    if launch.splits > 1:
        parts = queries.new_empty((requests, heads, launch.splits, dim), dtype=torch.float32)
        log_totals = queries.new_empty((requests, heads, launch.splits), dtype=torch.float32)
    decode_kernel[(key_cache.shape[2], requests, launch.splits)](
        *(queries, key_cache, value_cache, block_tables, context_lengths, parts, log_totals),
        *(*queries.stride()[:2], *key_cache.stride()[:3], block_tables.stride(0)),
        SPLITS=launch.splits,
        **constants(queries, key_cache, scale, window, softcap, launch),
    )
    if launch.splits > 1:
        shape = {"DIM": dim, "DIM_PADDED": padded_dim(dim), "SPLITS": launch.splits}
        merge_kernel[(requests * heads,)](parts, log_totals, results, **shape, num_warps=1)
    return results


@operator(like_queries)
def prefill_attention(
    queries: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    context_lengths: Tensor,
    query_starts: Tensor,
    *,
    max_query_length: int,
    scale: float,
    window: Optional[int] = None,
    softcap: Optional[float] = None,
) -> Tensor:
    """Causal attention [T, heads, dim] of packed query tokens over their requests' blocks.

    Request `r` owns rows query_starts[r]:query_starts[r + 1], at most `max_query_length` of them; the last one is token
    context_lengths[r] - 1. Keys before the chunk (a cached prefix) and in it are read from the cache alike. Rows that
    no request owns are zeros.
    """
    check_layout(key_cache, value_cache, block_tables)
    queries = with_dense_rows(queries)
    requests, heads, kv_heads = context_lengths.shape[0], queries.shape[1], key_cache.shape[2]
    launch = prefill_launch(queries, key_cache, max_query_length)
    results = queries.new_zeros(queries.shape)
    tiles = -(-max_query_length * (heads // kv_heads) // launch.block_m)
    prefill_kernel[(tiles, kv_heads, requests)](
        *(queries, key_cache, value_cache, block_tables, context_lengths, query_starts, results),
        *(*queries.stride()[:2], *key_cache.stride()[:3], block_tables.stride(0)),
        **constants(queries, key_cache, scale, window, softcap, launch),
    )
    return results


# --- checks that kernels do not make --------------------------------------------------------------------------------


def check_layout(key_cache: Tensor, value_cache: Tensor, indices: Tensor) -> None:
    """Raise EngineError for layouts that would make a kernel read out of bounds, and for a missing triton."""
    if not HAS_TRITON:
        raise EngineError("attention on CUDA needs triton, which torch's CUDA build brings along: pip install triton")
    if key_cache.stride() != value_cache.stride() or key_cache.stride(3) != 1 or indices.stride(-1) != 1:
        raise EngineError(
            "the caches must be laid out alike, and rows of caches, block tables and slots must be dense; found "
            f"strides {key_cache.stride()}, {value_cache.stride()} and {indices.stride()}: make them contiguous"
        )


def check_fit(keys: Tensor, values: Tensor, key_cache: Tensor) -> None:
    """Raise EngineError for keys and values whose shape does not fit the cache."""
    if keys.shape != values.shape or keys.shape[1:] != key_cache.shape[2:]:
        raise EngineError(
            f"keys {tuple(keys.shape)} and values {tuple(values.shape)} do not fit a cache of "
            f"{tuple(key_cache.shape)}: the engine runs models whose keys and values have one shape"
        )


def with_dense_rows(tensor: Tensor) -> Tensor:
    """The tensor with its last dimension contiguous, copied only if necessary; kernels take any other strides."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
