"""Attention of towers that read several images as one row of patches, as those of Qwen-VL do.

A patch sees the patches of its image, or of its window of the image. The models' own code attends to one such segment
after the other: with 50 images and 32 layers that is thousands of small kernels, and the host waits for the device in
each layer to learn where segments end. Here all segments of one length are one call.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

NAME = "agent_r1_segments"
_LENGTHS = "_agent_r1_lengths"


def attend_in_segments(tower: nn.Module) -> None:
    """Make the attention of a tower compute all segments of one length together. Towers that take no segments are left
    as they are."""
    layers = [module for module in tower.modules() if _takes_segments(module)]
    if not layers:
        return
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if NAME not in ALL_ATTENTION_FUNCTIONS:
        ALL_ATTENTION_FUNCTIONS.register(NAME, _attend)
    for layer in layers:
        if not hasattr(layer, _LENGTHS):
            setattr(layer, _LENGTHS, ())
            layer.register_forward_pre_hook(_note_segments, with_kwargs=True)
        layer.config._attn_implementation = NAME  # type: ignore[union-attr]


def _takes_segments(module: nn.Module) -> bool:
    return hasattr(module, "qkv") and "cu_seqlens" in signature(module.forward).parameters


def _note_segments(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Keep the lengths of the segments for `_attend`, and give the layer all patches as one segment."""
    ends = kwargs["cu_seqlens"]
    lengths = getattr(ends, _LENGTHS, None)
    if lengths is None:  # the layers of a pass get the same tensor: the host waits for the device once
        lengths = tuple((ends[1:] - ends[:-1]).tolist())
        setattr(ends, _LENGTHS, lengths)
    setattr(module, _LENGTHS, lengths)
    return args, kwargs | {"cu_seqlens": torch.tensor([0, sum(lengths)])}


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What transformers' attention functions return: [1, patches, heads, width], of [1, heads, patches, width]."""
    groups = _by_length(getattr(module, _LENGTHS), query.device)
    attended = query[0].transpose(0, 1)
    for length, rows in groups:
        q, k, v = (
            (tensor[0] if rows is None else tensor[0][:, rows]).reshape(len(tensor[0]), -1, length, tensor.shape[-1])
            for tensor in (query, key, value)
        )
        found = nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), scale=scaling, dropout_p=dropout
        )
        flat = found.transpose(1, 2).flatten(0, 1)
        attended = flat if rows is None else attended.index_copy(0, rows, flat)
    return attended[None], None


def _by_length(lengths: Sequence[int], device: torch.device) -> list[tuple[int, Tensor | None]]:
    """Each length with the rows of its segments; None when all segments have it.

    >>> [(length, rows.tolist()) for length, rows in _by_length((2, 1, 2), torch.device("cpu"))]
    [(2, [0, 1, 3, 4]), (1, [2])]
    """
    if len(set(lengths)) == 1:
        return [(lengths[0], None)]
    rows: defaultdict[int, list[int]] = defaultdict(list)
    start = 0
    for length in lengths:
        rows[length] += range(start, start + length)
        start += length
    return [(length, torch.tensor(indices, device=device)) for length, indices in rows.items() if length]
