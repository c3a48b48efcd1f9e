"""How FlexAttention is cut up for token tries on a GPU.

A trie's branches are short: an action and a tool's answer are some dozens of tokens. In a mask of blocks of 128 a third
of what is computed then lies in blocks that are only partly visible, which cost most; with blocks of 64 it is a tenth.
FlexAttention's backward kernel refuses such masks where its own choice of tiles is larger (heads of 64 on Hopper), so
it is given a smaller choice (`flex_choices`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

LARGE_BLOCK = 128
"""Tokens in a block of the mask: FlexAttention's own."""
SMALL_BLOCK = 64
"""For heads of up to 64 in half precision; wider ones keep FlexAttention's choices."""


def block_tokens(config: Any) -> int:
    """Tokens in a block of the mask, for the attention of a model with this configuration, as it would run now."""
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if head_size > SMALL_BLOCK or not torch.is_autocast_enabled("cuda") or not small_tiles_are_chosen():
        return LARGE_BLOCK
    return SMALL_BLOCK


def tiles(query: Tensor, block: int) -> dict[str, int] | None:
    """Tile sizes for heads of up to 64 in half precision, found by trying on an H200; None leaves them to it."""
    if query.shape[3] > SMALL_BLOCK or query.element_size() > 2:
        return None
    forward = {"fwd_BLOCK_M": block, "fwd_BLOCK_N": 64, "fwd_num_warps": 4, "fwd_num_stages": 3}
    backward = {f"bwd_BLOCK_{name}": 64 for name in ("M1", "N1", "M2", "N2")}
    return {**forward, **backward, "bwd_num_warps": 4, "bwd_num_stages": 3}


@cache
def small_tiles_are_chosen() -> bool:
    """Tell the compiler, once; False when somebody else has told it what to choose."""
    from torch._inductor import config  # the compiler takes a second to import and only GPUs need it

    from agent_r1.learner.packing.flex_choices import choose_small_tiles

    if config.inductor_choices_class is not None:
        return False
    choose_small_tiles()
    return True
