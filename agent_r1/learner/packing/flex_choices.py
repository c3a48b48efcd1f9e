"""What the compiler asks when it chooses tiles. Imported only where something is compiled for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from torch._inductor.choices import InductorChoices

from agent_r1.learner.packing.flex_tiles import SMALL_BLOCK

_SIDES = ("block_m1", "block_n1", "block_m2", "block_n2")


def with_small_tiles(choices: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """The compiler's own choices, except that FlexAttention's backward tiles for narrow heads divide SMALL_BLOCK."""

    @wraps(choices)
    def chosen(self: InductorChoices, head_dim: int, *args: Any, **kwargs: Any) -> list[Any]:
        configs = choices(self, head_dim, *args, **kwargs)
        if head_dim > SMALL_BLOCK:
            return configs
        return [
            replace(config, **{side: min(getattr(config, side), SMALL_BLOCK) for side in _SIDES}) for config in configs
        ]

    return chosen


def choose_small_tiles() -> None:
    """Change what the compiler chooses from, in every thread. It has a seam for that (`inductor_choices_class`), but
    each thread keeps the first choices it asked for, and backward graphs are compiled in a thread of autograd's that
    may have asked long before."""
    InductorChoices.get_flex_attention_bwd_configs = with_small_tiles(  # type: ignore[method-assign]
        InductorChoices.get_flex_attention_bwd_configs
    )
