"""Explains CUDA out-of-memory errors of a run: which processes hold the memory, and which keys reduce it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from agent_r1.config import Config
from agent_r1.errors import DeviceMemoryError


@contextmanager
def explain_cuda_oom(config: Config, *, loads: bool = False) -> Iterator[None]:
    """Inside, where a model is loaded or else updated, running out of memory raises a `DeviceMemoryError` that names
    the keys to change."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        what = "loading the model" if loads else "the update"
        advice = _advice(config, loads=loads)
        raise DeviceMemoryError(f"{what} ran out of GPU memory{_holders()}. {advice}") from error


def _holders() -> str:
    """`: this process holds 24.0 GB and others 115.1 GB of 139.8 GB`; empty without a GPU."""
    if not torch.cuda.is_available():
        return ""
    free, total = torch.cuda.mem_get_info()
    ours = torch.cuda.memory_reserved()
    others = max(0, total - free - ours)
    return f": this process holds {ours / 1e9:.1f} GB and others {others / 1e9:.1f} GB of {total / 1e9:.1f} GB"


def _advice(config: Config, *, loads: bool) -> str:
    """The keys that reduce memory, cheapest first."""
    settings, ways = config.trainer, list[str]()
    if not loads:
        ways.append(f"a smaller trainer.micro_batch_tokens (it is {settings.micro_batch_tokens})")
        if not settings.gradient_checkpointing:
            ways.append("trainer.gradient_checkpointing=true")
    if not config.model.lora.rank:
        ways.append("adapters (model.lora.rank=16)")
    if config.algorithm.critic.kind == "own":
        ways.append("a critic without a model of its own (algorithm.critic.kind=closed_form)")
    ways.append("a bound for the engine's cache (engine.kv_memory)")
    return f"These need less: {', '.join(ways)}. Or stop what else is on the GPU"
