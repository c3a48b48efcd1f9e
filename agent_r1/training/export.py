"""The export of a run: the type its weights are written in, and what rounding to that type costs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from agent_r1.config import Config
from agent_r1.errors import ConfigError, ExportError, raising
from agent_r1.training.lora import merged_weights
from agent_r1.training.models import export_model, open_model
from agent_r1.types import SamplingParams

CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounding:
    """What was lost when trained weights were rounded for their export."""

    dtype: torch.dtype
    """The type of the exported weights."""
    share: float
    """The norm of what rounding changed, as a share of the norm of what training changed."""

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        return (
            f"rounding the exported weights to {name} changed them by {self.share:.1%} of what training changed them; "
            "model.dtype=float32 exports them unrounded"
        )


def export_policy(
    policy: nn.Module, tokenizer: Any, folder: Path, config: Config, *, sampling: SamplingParams | None = None
) -> Rounding | None:
    """Write what a run trained to `folder`; gives what rounding cost, None when nothing was rounded.

    Whatever fails is a `StorageError` or an `ExportError`.
    """
    with raising(ExportError, f"{folder} cannot be exported"):
        dtype = export_dtype(config)
        export_model(policy, tokenizer, folder, dtype=dtype, sampling=sampling)
        with suppress(ConfigError):  # a base model that is gone takes only the figure with it
            return _rounding(policy, config, dtype)
    return None


def export_dtype(config: Config) -> torch.dtype:
    """`model.dtype`, or the type that the base model is stored in where that is wider.

    A float32 model that is trained with `model.dtype=bfloat16` is exported in float32.
    """
    from transformers import AutoConfig

    chosen: torch.dtype = getattr(torch, config.model.dtype)
    stored: Any = None
    with suppress(OSError, ValueError):  # what was made of a base model that is gone is still written
        stored = AutoConfig.from_pretrained(config.model.path, trust_remote_code=config.model.trust_remote_code).dtype
    if isinstance(stored, str):
        stored = getattr(torch, stored)
    return torch.promote_types(chosen, stored) if isinstance(stored, torch.dtype) else chosen


@torch.no_grad()
def _rounding(policy: nn.Module, config: Config, dtype: torch.dtype) -> Rounding | None:
    if dtype == torch.float32:
        return None
    base = open_model(config.model.path, dtype=dtype, trust_remote_code=config.model.trust_remote_code)
    start = base.state_dict()
    lost = moved = 0.0
    for name, tensor in merged_weights(policy, device=CPU):
        if name in start and tensor.is_floating_point():
            exact = tensor.detach().to(CPU, torch.float32)
            lost += float((exact.to(dtype).float() - exact).double().square().sum())
            moved += float((exact - start[name].float()).double().square().sum())
    return Rounding(dtype=dtype, share=(lost / moved) ** 0.5) if moved else None
