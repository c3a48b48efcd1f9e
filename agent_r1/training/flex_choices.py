"""What the compiler asks when it chooses tiles. Imported only where something is compiled for a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch._inductor.choices import InductorChoices

from agent_r1.training.flex_tiles import SMALL_BLOCK


class SmallTiles(InductorChoices):
    """The compiler's own choices, except that FlexAttention's backward tiles for narrow heads divide SMALL_BLOCK."""

    def get_flex_attention_bwd_configs(
        self, head_dim: int, dtype: torch.dtype, device_type: str | None = "cuda"
    ) -> list[Any]:
        """Configurations to choose from."""
        configs = super().get_flex_attention_bwd_configs(head_dim, dtype, device_type)
        if head_dim > SMALL_BLOCK:
            return configs
        sides = ("block_m1", "block_n1", "block_m2", "block_n2")
        return [
            replace(config, **{side: min(getattr(config, side), SMALL_BLOCK) for side in sides}) for config in configs
        ]

    def uuid(self) -> str:
        """What compiled code is remembered under."""
        return f"{type(self).__module__}.{type(self).__qualname__}.{SMALL_BLOCK}"
