"""Block and tile sizes of FlexAttention for token tries on a GPU.

A trie's branches are short: an action and a tool's answer are some dozens of tokens. In a mask of blocks of 128 a third
of what is computed then lies in blocks that are only partly visible, which cost most; with blocks of 64 it is a tenth.
FlexAttention's backward kernel refuses such masks where its own choice of tiles is larger (heads of 64 on Hopper), so
its choice is changed (`patch_backward_tiles`).
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor

LARGE_BLOCK = 128
"""Tokens per block of the mask: FlexAttention's own."""
SMALL_BLOCK = 64
"""For heads of up to 64 in half precision; wider ones keep FlexAttention's choices."""

_METHOD = "get_flex_attention_bwd_configs"
_PARAMETERS = ["self", "head_dim"]
"""Its first parameters in all versions of torch that the patch was tried with, 2.11 to 2.13."""
_TILE_SIDES = ("block_m1", "block_n1", "block_m2", "block_n2")


def block_tokens(config: Any) -> int:
    """Tokens per block of the mask, for the attention of a model with this configuration, as it would run now."""
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if head_size > SMALL_BLOCK or not torch.is_autocast_enabled("cuda") or not patch_backward_tiles():
        return LARGE_BLOCK
    return SMALL_BLOCK


def kernel_options(query: Tensor, block: int) -> dict[str, int]:
    """Tile sizes for heads of up to 64 in half precision, found by trial on an H200; else FlexAttention's own.

    Rows of fewer than 128 tokens would be given to FlexAttention's kernel for decoding, which has no tiles for some
    sizes (`NoValidChoicesError`) and other numbers than the one that longer rows get: it is not used. FlexAttention
    finds out by itself that a row is whole blocks only while its width is a number to the compiler, not a symbol.
    """
    options: dict[str, int] = {"FORCE_USE_FLEX_ATTENTION": True}
    if query.shape[2] % LARGE_BLOCK == 0:
        options["IS_DIVISIBLE"] = True  # no access is checked against the row's end
    if query.shape[3] > SMALL_BLOCK or query.element_size() > 2:
        return options
    forward = {"fwd_BLOCK_M": block, "fwd_BLOCK_N": 64, "fwd_num_warps": 4, "fwd_num_stages": 3}
    backward = {f"bwd_BLOCK_{name}": 64 for name in ("M1", "N1", "M2", "N2")}
    return {**options, **forward, **backward, "bwd_num_warps": 4, "bwd_num_stages": 3}


def with_own_heads(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values with a head for each head of queries, where heads of queries share them.

    In FlexAttention's backward pass a block of keys is one loop over all queries that see it, of all heads that share
    it. A preamble that a whole row sees would be one long loop that all others wait for: with six heads that share,
    six times as long. The copies cost next to nothing.
    """
    shared = query.shape[1] // key.shape[1]
    if shared == 1:
        return key, value
    return key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)


@cache
def patch_backward_tiles() -> bool:
    """Make the compiler choose backward tiles that divide a small block, once per process.

    The compiler has a setting for this (`inductor_choices_class`), but each thread keeps the first choices it asked
    for, and backward graphs are compiled in a thread of autograd that may have asked long before: so the method is
    replaced. Returns False, and changes nothing, when the setting is in use, or (with a warning) when this version of
    torch has another method.
    """
    from torch._inductor import config  # takes a second to import, and only GPUs need the compiler
    from torch._inductor.choices import InductorChoices

    if config.inductor_choices_class is not None:
        return False
    method = getattr(InductorChoices, _METHOD, None)
    if method is None or list(inspect.signature(method).parameters)[:2] != _PARAMETERS:
        warnings.warn(
            f"torch {torch.__version__} has no InductorChoices.{_METHOD}(self, head_dim, ...), which agent-r1 replaces "
            f"(tried with torch 2.11 to 2.13): updates use attention blocks of {LARGE_BLOCK} tokens instead of "
            f"{SMALL_BLOCK} and are slower. Use a version that was tried",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    setattr(InductorChoices, _METHOD, _with_small_tiles(method))
    return True


def _with_small_tiles(choices: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """The compiler's own choices, except that FlexAttention's backward tiles for narrow heads divide SMALL_BLOCK."""

    @wraps(choices)
    def small_choices(self: Any, head_dim: int, *args: Any, **kwargs: Any) -> list[Any]:
        configs = choices(self, head_dim, *args, **kwargs)
        if head_dim > SMALL_BLOCK:
            return configs
        try:
            return [
                replace(config, **{side: min(getattr(config, side), SMALL_BLOCK) for side in _TILE_SIDES})
                for config in configs
            ]
        except (AttributeError, TypeError) as error:
            raise RuntimeError(
                f"InductorChoices.{_METHOD} of torch {torch.__version__} gives other records than in torch 2.11 to "
                f"2.13, for which agent-r1 changes their {', '.join(_TILE_SIDES)}: {error}. Use one of these versions"
            ) from error

    return small_choices
