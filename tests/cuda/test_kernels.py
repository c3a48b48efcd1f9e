"""The paged attention kernels against plain torch: ragged lengths, shared heads, windows, soft caps, dirty memory.

They run on CUDA, or anywhere in triton's interpreter: `TRITON_INTERPRET=1 pytest tests/cuda/test_kernels.py`. That one
multiplies the bit patterns of bfloat16, so float16 stands in for it there.
"""

from __future__ import annotations

import importlib.util
import math
import os
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from agent_r1.engines.local.cuda import attention_kernels as kernels
from agent_r1.engines.local.cuda.attention_kernels import decode_attention, prefill_attention, write_kv
from agent_r1.engines.local.cuda.launch_config import Launch, decode_launch
from agent_r1.errors import EngineError

HAS_TRITON = importlib.util.find_spec("triton") is not None
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
HALF = torch.bfloat16 if CUDA else torch.float16
# Halves of 8 and 11 bits: weights are rounded once before the sum, the result once after it.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}

# The interpreter turns one-element arrays into loop bounds, which newer numpy warns about.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")
runs_kernels = pytest.mark.skipif(
    not HAS_TRITON or not (CUDA or os.environ.get("TRITON_INTERPRET") == "1"),
    reason="needs triton, and a CUDA device or TRITON_INTERPRET=1",
)


class Cache(NamedTuple):
    """Both caches, block tables and lengths, in the order the kernels take them."""

    keys: Tensor
    values: Tensor
    tables: Tensor
    lengths: Tensor


# --- what the kernels compute ----------------------------------------------------------------------------------------


def reference_write_kv(
    keys: Tensor, values: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    """Token by token."""
    block_size = key_cache.shape[1]
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            key_cache[slot // block_size, slot % block_size] = keys[token]
            value_cache[slot // block_size, slot % block_size] = values[token]


def reference_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """One request: the last rows of a causal attention, in float32, with every score and mask written out."""
    group, context = queries.shape[1] // keys.shape[1], len(keys)
    keys, values = (tensor.float().repeat_interleave(group, dim=1) for tensor in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", queries.float(), keys) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    position = torch.arange(context - len(queries), context, device=queries.device)[:, None]
    key_position = torch.arange(context, device=queries.device)[None, :]
    hidden = key_position > position
    if window is not None:
        hidden = hidden | (key_position <= position - window)
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values).to(queries.dtype)


def reference_prefill_attention(queries: Tensor, cache: Cache, query_starts: Tensor, **options: Any) -> Tensor:
    """Request by request, its keys and values gathered from its blocks."""
    result = torch.zeros_like(queries)
    starts = query_starts.tolist()
    for request, context in enumerate(cache.lengths.tolist()):
        own = slice(starts[request], starts[request + 1])
        if context == 0 or own.start == own.stop:
            continue
        blocks = cache.tables[request, : -(-context // cache.keys.shape[1])].long()
        keys, values = (tensor[blocks].flatten(0, 1)[:context] for tensor in (cache.keys, cache.values))
        result[own] = reference_attention(queries[own], keys, values, **options)
    return result


def reference_decode_attention(queries: Tensor, cache: Cache, **options: Any) -> Tensor:
    """A prefill of one token for each request."""
    return reference_prefill_attention(queries, cache, torch.arange(len(queries) + 1), **options)


# --- inputs ----------------------------------------------------------------------------------------------------------


def random_cache(
    lengths: list[int],
    *,
    kv_heads: int = 2,
    dim: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    spare_blocks: int = 0,
) -> Cache:
    """Blocks in random order; every slot that no token owns is NaN, every table entry that no block owns is wild."""
    generator = torch.Generator().manual_seed(len(lengths) + dim)
    counts = [-(-length // block_size) for length in lengths]
    order = (torch.randperm(sum(counts) + 3, generator=generator) + 1)[: sum(counts)].split(counts)
    shape = (sum(counts) + 4, block_size, kv_heads, dim)
    keys, values = torch.full(shape, math.nan), torch.full(shape, math.nan)
    tables = torch.full((len(lengths), max(counts) + spare_blocks), 2**30, dtype=torch.int32)
    for request, (length, blocks) in enumerate(zip(lengths, order, strict=True)):
        tables[request, : len(blocks)] = blocks
        token = torch.arange(length)
        for cache in (keys, values):
            rows = torch.randn(length, kv_heads, dim, generator=generator)
            cache[blocks[token // block_size], token % block_size] = rows
    return Cache(
        keys.to(DEVICE, dtype),
        values.to(DEVICE, dtype),
        tables.to(DEVICE),
        torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
    )


def random_rows(count: int, heads: int, dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, heads, dim, generator=generator).to(DEVICE, dtype)


def newest(cache: Cache) -> tuple[Tensor, Tensor, Tensor]:
    """The keys and values [R, kv_heads, dim] of each request's last token, and their slots; without tokens -1."""
    last, block_size = (cache.lengths.long() - 1), cache.keys.shape[1]
    blocks = cache.tables.gather(1, (last.clamp(min=0) // block_size)[:, None]).squeeze(1).long()
    slots = torch.where(last >= 0, blocks * block_size + last % block_size, -1)
    keys, values = (tensor.flatten(0, 1)[slots.clamp(min=0)] for tensor in (cache.keys, cache.values))
    return keys, values, slots


def decoded(queries: Tensor, cache: Cache, **options: Any) -> Tensor:
    """Decode with the newest tokens' keys and values given; their places in the cache hold NaN until then."""
    keys, values, slots = newest(cache)
    dirty = cache._replace(keys=cache.keys.clone(), values=cache.values.clone())
    for tensor in (dirty.keys, dirty.values):
        tensor.flatten(0, 1)[slots[slots >= 0]] = math.nan
    result = decode_attention(queries, keys, values, *dirty, **options)
    assert torch.equal(dirty.keys.nan_to_num(), cache.keys.nan_to_num()), "written to their places, and nowhere else"
    assert torch.equal(dirty.values.nan_to_num(), cache.values.nan_to_num())
    return result


def assert_decode_agrees(queries: Tensor, cache: Cache, **options: Any) -> None:
    found = decoded(queries, cache, **options)
    assert found.dtype == queries.dtype
    expected = reference_decode_attention(queries, cache, **options)
    torch.testing.assert_close(found, expected, rtol=TOLERANCE[queries.dtype], atol=TOLERANCE[queries.dtype])


def assert_prefill_agrees(queries: Tensor, cache: Cache, query_lengths: list[int], **options: Any) -> None:
    starts = torch.tensor([0, *query_lengths], device=DEVICE).cumsum(0).to(torch.int32)
    longest = max(query_lengths)
    found = prefill_attention(queries, *cache, starts, max_query_length=longest, **options)
    assert found.dtype == queries.dtype
    expected = reference_prefill_attention(queries, cache, starts, **options)
    torch.testing.assert_close(found, expected, rtol=TOLERANCE[queries.dtype], atol=TOLERANCE[queries.dtype])


# --- writing ---------------------------------------------------------------------------------------------------------


@runs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kv_heads", "dim"), [(3, 64), (2, 80), (1, 128)])
def test_keys_and_values_land_in_their_slots_and_nowhere_else(kv_heads: int, dim: int, dtype: torch.dtype) -> None:
    keys, values = random_rows(7, kv_heads, dim, dtype), random_rows(8, kv_heads, dim, dtype)[:7]
    slots = torch.tensor([0, 37, -1, 5, -7, 79, 16], device=DEVICE)
    found = [torch.zeros(5, 16, kv_heads, dim, dtype=dtype, device=DEVICE) for _ in range(2)]
    expected = [cache.clone() for cache in found]
    write_kv(keys, values, found[0], found[1], slots)
    reference_write_kv(keys, values, expected[0], expected[1], slots)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    assert sum(int(row.any()) for row in found[0].flatten(0, 1)) == 5


@runs_kernels
def test_strided_keys_are_written_without_a_copy() -> None:
    projected = random_rows(6, 4 * 3, 64)  # queries, keys and values side by side, as a fused projection gives them
    keys, values = projected[:, 4:7], random_rows(3, 6, 64).transpose(0, 1)
    found = [torch.zeros(2, 4, 3, 64, device=DEVICE) for _ in range(2)]
    write_kv(keys, values, found[0], found[1], torch.arange(6, device=DEVICE))
    assert torch.equal(found[0].flatten(0, 1)[:6], keys)
    assert torch.equal(found[1].flatten(0, 1)[:6], values)


# --- decoding --------------------------------------------------------------------------------------------------------


@runs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("dim", [64, 80, 128])
@pytest.mark.parametrize("group", [1, 3, 6, 8])
def test_decode_agrees_with_plain_attention(group: int, dim: int, dtype: torch.dtype) -> None:
    cache = random_cache([1, 17, 0, 150, 16], dim=dim, dtype=dtype)
    assert_decode_agrees(random_rows(5, 2 * group, dim, dtype), cache, scale=dim**-0.5)


@runs_kernels
@pytest.mark.parametrize("window", [1, 5, 64, 1000])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_decode_sees_the_last_tokens_of_the_window_under_the_cap(window: int, softcap: float | None) -> None:
    cache = random_cache([1, 17, 0, 130, 64])
    assert_decode_agrees(random_rows(5, 6, 64), cache, scale=0.3, window=window, softcap=softcap)


@runs_kernels
@pytest.mark.parametrize("window", [None, 300])
@pytest.mark.parametrize("splits", [2, 4, 16])
def test_a_context_split_over_programs_merges_to_the_same(
    splits: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "decode_launch", lambda *shapes: Launch(16, 32, 4, 3, splits))
    cache = random_cache([1, 0, 33, 420])
    assert_decode_agrees(random_rows(4, 6, 64), cache, scale=0.125, window=window)


@runs_kernels
def test_few_requests_with_long_contexts_are_split_by_default() -> None:
    cache = random_cache([700, 3], kv_heads=1)
    queries = random_rows(2, 3, 64)
    assert decode_launch(queries, cache.keys, cache.tables, None).splits > 1
    assert_decode_agrees(queries, cache, scale=0.125)


@runs_kernels
@pytest.mark.parametrize("block_size", [1, 8, 48, 256])
def test_decode_takes_any_block_size_and_strided_queries(block_size: int) -> None:
    cache = random_cache([1, 17, 100], block_size=block_size, spare_blocks=2)
    queries = random_rows(3, 8, 64)[:, 2:6]
    assert_decode_agrees(queries, cache, scale=0.125)


@runs_kernels
def test_requests_that_share_blocks_each_see_them() -> None:
    """Full blocks are shared, the one that is written to never is."""
    cache = random_cache([64, 40])
    tables = cache.tables.clone()
    tables[1, :2] = tables[0, :2]
    assert_decode_agrees(random_rows(2, 4, 64), cache._replace(tables=tables), scale=0.125)


@runs_kernels
def test_strided_newest_keys_are_taken_as_they_are() -> None:
    cache = random_cache([1, 17, 40])
    keys, values, _ = newest(cache)
    side_by_side = torch.cat([random_rows(3, 4, 64), keys, values], dim=1)  # as a fused projection gives them
    found = decode_attention(side_by_side[:, :4], side_by_side[:, 4:6], side_by_side[:, 6:], *cache, scale=0.125)
    torch.testing.assert_close(found, decoded(side_by_side[:, :4], cache, scale=0.125))


def test_the_split_depends_on_shapes_alone() -> None:
    """132 processors want 264 programs: 64 requests x 3 heads give 192, so two ranges each; 256 x 3 are enough."""
    cache = torch.empty(1, 16, 3, 64, dtype=torch.bfloat16)
    tables = torch.empty(1, 128, dtype=torch.int32)

    def splits(requests: int, window: int | None = None) -> int:
        return decode_launch(torch.empty(requests, 9, 64), cache, tables, window).splits

    assert [splits(requests) for requests in (1, 16, 64, 256)] == [8, 8, 2, 1]
    assert splits(1, window=600) == 2  # ranges keep at least 256 tokens


# --- prefill ---------------------------------------------------------------------------------------------------------


@runs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("dim", [64, 80, 128])
@pytest.mark.parametrize("group", [1, 3, 6, 8])
def test_prefill_agrees_with_plain_attention(group: int, dim: int, dtype: torch.dtype) -> None:
    """Whole prompts, a chunk after a longer prefix, a single token, a request without tokens."""
    query_lengths = [50, 9, 1, 0, 1, 17]
    cache = random_cache([50, 90, 1, 20, 33, 17], dim=dim, dtype=dtype)
    queries = random_rows(sum(query_lengths), 2 * group, dim, dtype)
    assert_prefill_agrees(queries, cache, query_lengths, scale=dim**-0.5)


@runs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("window", [1, 20, 500])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_prefill_sees_the_last_tokens_of_the_window_under_the_cap(
    window: int, softcap: float | None, dtype: torch.dtype
) -> None:
    query_lengths = [70, 9, 40]
    cache = random_cache([70, 90, 130], dtype=dtype)
    queries = random_rows(sum(query_lengths), 6, 64, dtype)
    assert_prefill_agrees(queries, cache, query_lengths, scale=0.3, window=window, softcap=softcap)


@runs_kernels
def test_rows_that_no_request_owns_are_zeros() -> None:
    cache = random_cache([5])
    starts = torch.tensor([0, 5], dtype=torch.int32, device=DEVICE)
    found = prefill_attention(random_rows(8, 4, 64), *cache, starts, max_query_length=5, scale=1.0)
    assert found[:5].any()
    assert not found[5:].any()


@runs_kernels
def test_decoding_token_by_token_gives_what_prefill_gives() -> None:
    cache = random_cache([24])
    queries = random_rows(24, 6, 64)
    starts = torch.tensor([0, 24], dtype=torch.int32, device=DEVICE)
    whole = prefill_attention(queries, *cache, starts, max_query_length=24, scale=0.125)
    lengths = torch.arange(1, 25, dtype=torch.int32, device=DEVICE)
    every = Cache(cache.keys, cache.values, cache.tables.expand(24, -1), lengths)
    steps = decode_attention(queries, *newest(every)[:2], *every, scale=0.125)
    torch.testing.assert_close(steps, whole, rtol=1e-5, atol=1e-5)


# --- operators -------------------------------------------------------------------------------------------------------


@pytest.mark.whole
def test_a_traced_layer_stays_one_graph() -> None:
    def layer(queries: Tensor, keys: Tensor, slots: Tensor, cache: Cache) -> Tensor:
        write_kv(keys, keys, cache.keys, cache.values, slots)
        starts = torch.arange(3, dtype=torch.int32)
        one_each = decode_attention(queries * 2, keys, keys, *cache, scale=0.5, window=9)
        return one_each + prefill_attention(queries, *cache, starts, max_query_length=1, scale=0.5, softcap=3.0)

    traced: list[list[str]] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        traced.append([str(node.target) for node in graph.graph.nodes if "agent_r1" in str(node.target)])
        return lambda *values: (torch.zeros(2, 6, 64),)

    inputs = (torch.zeros(2, 6, 64), torch.zeros(2, 2, 64), torch.tensor([0, 16]))
    cache = Cache(torch.zeros(4, 16, 2, 64), torch.zeros(4, 16, 2, 64), torch.ones(2, 1).int(), torch.ones(2).int())
    torch.compile(layer, backend=backend, fullgraph=True)(*inputs, cache)
    assert len(traced) == 1
    order = [
        name for target in traced[0] for name in ("write_kv", "decode_attention", "prefill_attention") if name in target
    ]
    assert order == ["write_kv", "decode_attention", "prefill_attention"]


@runs_kernels
def test_no_requests_give_no_rows() -> None:
    cache = random_cache([5])
    none = cache._replace(tables=cache.tables[:0], lengths=cache.lengths[:0])
    starts = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    empty = random_rows(0, 4, 64)
    assert decode_attention(empty, empty[:, :2], empty[:, :2], *none, scale=1.0).shape == (0, 4, 64)
    assert prefill_attention(empty, *none, starts, max_query_length=0, scale=1.0).shape == (0, 4, 64)
    write_kv(empty[:, :2], empty[:, :2], cache.keys, cache.values, starts[:0].long())


@runs_kernels
def test_operators_declare_what_they_change() -> None:
    cache = random_cache([5, 20])
    rows = random_rows(2, 2, 64)
    write = (rows, rows, cache.keys.nan_to_num(), cache.values.nan_to_num(), torch.tensor([3, 40], device=DEVICE))
    torch.library.opcheck(write_kv, write, test_utils=("test_schema", "test_faketensor"))
    torch.library.opcheck(
        decode_attention,
        (random_rows(2, 6, 64), rows, rows, cache.keys.nan_to_num(), cache.values.nan_to_num(), *cache[2:]),
        {"scale": 0.125},
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.skipif(HAS_TRITON, reason="triton is installed")
def test_without_triton_a_launch_says_what_to_install() -> None:
    cache = random_cache([5])
    with pytest.raises(EngineError, match="pip install triton"):
        decode_attention(random_rows(1, 4, 64), *newest(cache)[:2], *cache, scale=1.0)


@runs_kernels
def test_caches_laid_out_differently_are_refused() -> None:
    cache = random_cache([5])
    sideways = cache._replace(values=cache.values.transpose(1, 2).contiguous().transpose(1, 2))
    with pytest.raises(EngineError, match="laid out alike"):
        decode_attention(random_rows(1, 4, 64), *newest(cache)[:2], *sideways, scale=1.0)
