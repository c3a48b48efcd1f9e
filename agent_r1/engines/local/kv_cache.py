"""The size of the KV cache, and its memory."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agent_r1.engines.local.blocks import BLOCK_SIZE, blocks_for
from agent_r1.errors import DeviceMemoryError, EngineError

LayerCache = tuple[Tensor, Tensor]
"""Keys and values of one layer, each [blocks, BLOCK_SIZE, kv heads, head size]."""

MODERATE_LENGTH = 2048
"""Tokens a request is expected to need when `kv_memory` is not set."""
DEFAULT_FRACTION = 0.25
"""Maximum fraction of memory when `kv_memory` is not set."""


def kv_blocks(
    kv_memory: float | None,
    *,
    config: Any,
    dtype: torch.dtype,
    device: torch.device,
    max_requests: int,
    context_length: int,
) -> int:
    """How many blocks to allocate: `kv_memory` tokens, or that fraction of memory, or enough for an ordinary load.

    `kv_memory=1000` gives 62 blocks of 16. A fraction (0.5) is of the free memory of a GPU; on CPU it is of all memory
    of the machine, where pages are only allocated when they are written.
    """
    if kv_memory is not None and not (kv_memory > 0 and math.isfinite(kv_memory)):
        raise EngineError(f"kv_memory is {kv_memory}; give a number of tokens, or a fraction in (0, 1]")
    if kv_memory is not None and kv_memory > 1:
        num_blocks = int(kv_memory) // BLOCK_SIZE
    else:
        fraction = DEFAULT_FRACTION if kv_memory is None else kv_memory
        num_blocks = int(_memory(device) * fraction) // _block_bytes(config, dtype)
        if kv_memory is None:
            num_tokens = max(context_length, max_requests * min(context_length, MODERATE_LENGTH))
            num_blocks = min(num_blocks, blocks_for(num_tokens))
    if num_blocks < 1:
        raise EngineError(f"kv_memory={kv_memory} holds no block of {BLOCK_SIZE} tokens; give more")
    return num_blocks


def empty_caches(num_blocks: int, *, config: Any, dtype: torch.dtype, device: torch.device) -> tuple[LayerCache, ...]:
    """Zeroed keys and values of every layer, spare block included."""
    shape = (num_blocks + 1, BLOCK_SIZE, *_heads(config))
    free = _memory(device)
    try:
        return tuple(
            (_zeros(shape, dtype, device), _zeros(shape, dtype, device)) for _ in range(int(config.num_hidden_layers))
        )
    except torch.OutOfMemoryError as error:
        needed = (num_blocks + 1) * _block_bytes(config, dtype)
        raise DeviceMemoryError(
            f"the engine's KV cache of {num_blocks * BLOCK_SIZE} tokens takes {needed / 1e9:.1f} GB, and "
            f"{free / 1e9:.1f} GB are free. Lower engine.kv_memory, or stop what else is on the GPU"
        ) from error


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # NumPy gets zeroed pages from the system, which cost nothing until they are touched; torch would write them all.
    num_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(dtype).view(shape)


def _heads(config: Any) -> tuple[int, int]:
    """Key/value heads and their size."""
    num_heads = int(config.num_attention_heads)
    num_key_heads = getattr(config, "num_key_value_heads", None) or num_heads
    return int(num_key_heads), int(getattr(config, "head_dim", None) or config.hidden_size // num_heads)


def _block_bytes(config: Any, dtype: torch.dtype) -> int:
    num_key_heads, size = _heads(config)
    return 2 * int(config.num_hidden_layers) * BLOCK_SIZE * num_key_heads * size * dtype.itemsize


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
