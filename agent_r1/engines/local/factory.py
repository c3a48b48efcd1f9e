"""Builds the in-process engine of a run from its configuration."""

from __future__ import annotations

import torch
from torch import nn

from agent_r1.config import Config
from agent_r1.engines.local.engine import LocalEngine
from agent_r1.models import find_targets


def make_local_engine(config: Config, policy: nn.Module, context_length: int) -> LocalEngine:
    """An engine with its own copy of the policy, sized by the sections `engine` and `rollout`."""
    settings = config.engine
    on_gpu = next(policy.parameters()).is_cuda
    dtype = {"auto": "bfloat16" if on_gpu else config.model.dtype}.get(settings.dtype, settings.dtype)
    return LocalEngine(
        policy,
        max_requests=config.rollout.concurrency,
        context_length=context_length,
        prefill_tokens=settings.prefill_tokens,
        kv_memory=settings.kv_memory,
        dtype=getattr(torch, dtype),
        compile_layers=settings.compile,
        adapters=_unmerged_adapters(config, policy, dtype),
    )


def _unmerged_adapters(config: Config, policy: nn.Module, engine_dtype: str) -> dict[str, int]:
    """The LoRA adapters that the engine applies beside its weights, with their ranks: all of them when its weights are
    too coarse to merge them into."""
    lora = config.model.lora
    if not lora.rank or engine_dtype == "float32":
        return {}
    return dict.fromkeys(find_targets(policy, lora.targets, vision=config.model.train_vision), lora.rank)
