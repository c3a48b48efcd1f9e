"""Launch configurations of the attention kernels: tile sizes and splits, from shapes alone."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from agent_r1.engines.local.cuda.triton_compat import next_power_of_2

LOG2_E = math.log2(math.e)


class Launch(NamedTuple):
    """Tile sizes, warps and splits of an attention kernel."""

    block_m: int  # query rows per tile
    block_n: int  # keys per tile
    num_warps: int
    num_stages: int
    splits: int = 1  # ranges the context is split into


def decode_launch(queries: Tensor, key_cache: Tensor, block_tables: Tensor, window: int | None) -> Launch:
    """The launch of the decode kernel.

    A pipeline stage holds at most 32 KB of keys and values, so that several programs share a multiprocessor. Contexts
    are split when there are fewer than two programs per multiprocessor, into ranges of at least 256 tokens. With eight
    or more programs per multiprocessor, many small ones are faster (by 5 to 9 % on an H200): they hide each other's
    latency.
    """
    kv_heads = key_cache.shape[2]
    row_bytes = 2 * padded_dim(queries.shape[2]) * key_cache.element_size()
    block_n = max(16, min(64, 32768 // row_bytes))
    max_context = block_tables.shape[1] * key_cache.shape[1]
    if window is not None:
        max_context = min(max_context, window)
    programs, enough = max(1, queries.shape[0] * kv_heads), 2 * num_processors(queries.device)
    splits = 1
    while programs * splits < enough and splits < 64 and max_context // (2 * splits) >= 256:
        splits *= 2
    block_m = max(16, next_power_of_2(queries.shape[1] // kv_heads))
    if programs >= 4 * enough and row_bytes <= 512 and block_m == 16:
        return Launch(block_m, 32, num_warps=1, num_stages=2)
    return Launch(block_m, block_n, 4, 3, splits)


def prefill_launch(queries: Tensor, key_cache: Tensor, max_query_length: int) -> Launch:
    """The launch of the prefill kernel: wide tiles for long chunks, 64 rows (one warp group) for short ones and wide
    heads."""
    dim = padded_dim(queries.shape[2])
    if key_cache.element_size() > 2:  # full float32 has no tensor cores: small tiles, or registers spill
        return Launch(16, 16, num_warps=4, num_stages=2)
    if dim > 128 or max_query_length * queries.shape[1] // key_cache.shape[2] <= 64:
        return Launch(64, 64 if dim <= 128 else 32, num_warps=4, num_stages=2)
    return Launch(128, 64, num_warps=4 if dim <= 64 else 8, num_stages=3)


def constants(
    queries: Tensor, key_cache: Tensor, scale: float, window: int | None, softcap: float | None, launch: Launch
) -> dict[str, Any]:
    """Compile-time constants of both attention kernels. Scores are in base 2, hence the factor LOG2_E."""
    return {
        "SCALE": float(scale) * LOG2_E,
        "WINDOW": window or 0,
        "SOFTCAP": float(softcap or 0.0) * LOG2_E,
        "GROUP": queries.shape[1] // key_cache.shape[2],
        "DIM": queries.shape[2],
        "DIM_PADDED": padded_dim(queries.shape[2]),
        "BLOCK_SIZE": key_cache.shape[1],
        "BLOCK_M": launch.block_m,
        "BLOCK_N": launch.block_n,
        "num_warps": launch.num_warps,
        "num_stages": launch.num_stages,
    }


def padded_dim(dim: int) -> int:
    """The width of a tile: a power of two, at least the minimum of a matrix instruction."""
    return max(16, next_power_of_2(dim))


@cache
def num_processors(device: torch.device) -> int:
    """Streaming multiprocessors of the device; in the interpreter the number of a Hopper GPU."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 132
