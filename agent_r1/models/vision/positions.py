"""Positions of patches in vision towers, the same in every precision.

The embeddings of SmolVLM and Idefics3 find the position of a patch from fractions such as 3/10. Some versions of
transformers, 5.17 among them, round these to the type of the pixels first: in bfloat16, patches of an image that is not
2^n patches wide get positions of their neighbours, and an engine in bfloat16 sees other images than a float32 trainer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_STEADY = "_agent_r1_steady_positions"


def steady_positions(tower: nn.Module) -> None:
    """Make a tower's embeddings find positions in float32. Their convolution keeps its type; other towers are left as
    they are."""
    embeddings: Any = getattr(tower, "embeddings", None)
    if not hasattr(embeddings, "num_patches_per_side") or getattr(embeddings, _STEADY, False):
        return
    embeddings.register_forward_pre_hook(_pixels_in_float32, with_kwargs=True)
    embeddings.patch_embedding.register_forward_pre_hook(_pixels_in_type_of_weights)
    setattr(embeddings, _STEADY, True)


def _pixels_in_float32(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    if "pixel_values" in kwargs:
        return args, kwargs | {"pixel_values": kwargs["pixel_values"].float()}
    return (args[0].float(), *args[1:]), kwargs


def _pixels_in_type_of_weights(module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
    weight: Any = module.weight
    return (args[0].to(weight.dtype), *args[1:])
