"""What is said when a GPU has too little memory for an update: who holds it, and which keys need less."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from agent_r1.config import Config
from agent_r1.errors import DeviceMemoryError


@contextmanager
def explain_cuda_oom(config: Config) -> Iterator[None]:
    """Inside, running out of memory is a `DeviceMemoryError` that says what to change."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceMemoryError(f"the update ran out of GPU memory{_holders()}. {_advice(config)}") from error


def _holders() -> str:
    """`: this process holds 24.0 GB and others 115.1 GB of 139.8 GB`; nothing where no GPU can be asked."""
    if not torch.cuda.is_available():
        return ""
    free, total = torch.cuda.mem_get_info()
    own = torch.cuda.memory_reserved()
    others = max(0, total - free - own)
    return f": this process holds {own / 1e9:.1f} GB and others {others / 1e9:.1f} GB of {total / 1e9:.1f} GB"


def _advice(config: Config) -> str:
    """The keys that need less memory, those first that cost least."""
    settings = config.trainer
    ways = [f"a smaller trainer.micro_batch_tokens (it is {settings.micro_batch_tokens})"]
    if not settings.gradient_checkpointing:
        ways.append("trainer.gradient_checkpointing=true")
    if not config.model.lora.rank:
        ways.append("adapters (model.lora.rank=16)")
    if config.algorithm.critic.kind == "own":
        ways.append("a critic without a model of its own (algorithm.critic.kind=closed_form)")
    ways.append("a bound for the engine's cache (engine.kv_memory)")
    return f"These need less: {', '.join(ways)}. Or stop what else is on the GPU"
