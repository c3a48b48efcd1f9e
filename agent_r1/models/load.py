"""Loading and exporting the policy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn

from agent_r1.errors import ConfigError, EngineError
from agent_r1.models.attention_features import check_attention
from agent_r1.models.fused_projections import fuse_projections
from agent_r1.models.lm_head import check_head


def choose_device(name: str) -> torch.device:
    """`auto` is a GPU when there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    num_gpus = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= num_gpus:
        raise ConfigError(f"trainer.device={name}: there are {num_gpus} GPUs here; use auto or cpu")
    return device


def open_model(
    path: str, *, dtype: torch.dtype, attention: str | None = None, trust_remote_code: bool = False
) -> nn.Module:
    """A causal language model from a Hugging Face folder or id, on the CPU; `attention` names another than its own."""
    from transformers import AutoModelForCausalLM

    try:
        with no_progress_bars():
            model = AutoModelForCausalLM.from_pretrained(
                path, dtype=dtype, trust_remote_code=trust_remote_code, attn_implementation=attention
            )
    except (OSError, ValueError) as error:
        raise ConfigError(f"the model '{path}' cannot be loaded: {error}") from error
    return cast(nn.Module, model)


def load_policy(
    path: str, *, dtype: str, device: torch.device, attention: str | None = None, trust_remote_code: bool = False
) -> nn.Module:
    """The model that a run trains; one that would be computed otherwise than it is meant is refused."""
    policy = open_model(path, dtype=getattr(torch, dtype), attention=attention, trust_remote_code=trust_remote_code)
    # Dropout, if the model has any, would make every score of the same tokens a different one.
    policy = policy.to(device).eval()
    try:
        check_attention(policy)
        check_head(policy)
    except EngineError as error:
        raise ConfigError(f"model.path={path}: {error}") from error
    return policy


def checkpoint_layers(model: nn.Module) -> None:
    """Recompute each decoder layer going backward instead of keeping what it computed.

    Layers do so only in training mode; only they are put into it, so that dropout stays off.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    cast(Any, model).gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True


def compile_layers(decoder: nn.Module) -> None:
    """Compile each layer of a decoder in place; a whole model would take far longer to compile.

    Projections of the same input become one product first: compiled, joining their weights costs nothing.
    """
    fuse_projections(decoder, trained=True)
    # All layers of all models of a run share one piece of code: leave room for its variants (with and without gradient,
    # adapters on and off, one shape and any shape).
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    for layer in cast(Any, decoder).layers:
        layer.compile()


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Reading and writing a local file needs no bar, and one would break into ours."""
    from transformers.utils import logging

    active = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if active:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
