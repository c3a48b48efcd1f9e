"""Loading models: any model with its tokenizer, and the policy of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from agent_r1.chat import ChatRenderer, Tokenizer, generation_stop_ids, load_tokenizer
from agent_r1.config import ModelConfig
from agent_r1.errors import CheckpointError, ConfigError, EngineError
from agent_r1.files import is_gguf
from agent_r1.images import load_image_processor
from agent_r1.models.attention_features import check_attention
from agent_r1.models.compile_clock import watch_compilation
from agent_r1.models.fused_projections import fuse_projections
from agent_r1.models.gguf import unpack_gguf
from agent_r1.models.lm_head import check_head
from agent_r1.models.lora import add_adapters, merged_weights, restore_state
from agent_r1.models.precision import train_in_float32
from agent_r1.models.pretrained import open_model
from agent_r1.models.vision import freeze_vision


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedModel:
    """A model in evaluation mode, and its tokenizer."""

    model: nn.Module
    tokenizer: Tokenizer
    path: str
    """The folder or hub id it was read from; for a GGUF file the folder it was unpacked into."""

    @property
    def context_length(self) -> int:
        """The longest sequence the model was made for, in tokens."""
        return int(cast(Any, self.model).config.get_text_config().max_position_embeddings)

    def renderer(self, tool_format: str = "hermes") -> ChatRenderer:
        """The renderer of the model's chat template, with the image processor of a model that sees. Raises ConfigError
        when the tokenizer has no template."""
        processor = load_image_processor(self.path, self.tokenizer)
        return ChatRenderer(self.tokenizer, tool_format, stop_ids=generation_stop_ids(self.path), processor=processor)


def load_model(
    path: str | Path,
    *,
    dtype: str = "auto",
    device: str | torch.device = "auto",
    attention: str | None = None,
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Load a model and its tokenizer from a folder, a hub id or a GGUF file; no recipe is needed.

        loaded = load_model("runs/calculator/hf")
        engine, renderer = LocalEngine(loaded.model), loaded.renderer()

    A GGUF file is unpacked into the cache the first time. `dtype` is a torch type by name, or `auto` for the type the
    weights are stored in.
    """
    source = str(unpack_gguf(Path(path)) if is_gguf(path) else path)
    model = open_model(
        source,
        dtype=dtype if dtype == "auto" else getattr(torch, dtype),
        attention=attention,
        trust_remote_code=trust_remote_code,
    )
    tokenizer = load_tokenizer(source, trust_remote_code=trust_remote_code)
    placed = model.to(choose_device(device) if isinstance(device, str) else device).eval()
    return LoadedModel(model=placed, tokenizer=tokenizer, path=source)


def choose_device(name: str) -> torch.device:
    """The device of this name; `auto` is a GPU if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    num_gpus = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= num_gpus:
        raise ConfigError(
            f"there is no device {name}: this machine has {num_gpus} GPUs; use auto or cpu (trainer.device)"
        )
    return device


def load_policy(
    path: str, *, dtype: str, device: torch.device, attention: str | None = None, trust_remote_code: bool = False
) -> nn.Module:
    """The model that a run trains. Raises ConfigError for a model that the engine and the learner would not compute
    as its authors do; `attention` is the learner's."""
    policy = open_model(path, dtype=getattr(torch, dtype), attention=attention, trust_remote_code=trust_remote_code)
    # With dropout, two passes over the same tokens would give different log-probs.
    policy = policy.to(device).eval()
    try:
        check_attention(policy)
        check_head(policy)
    except EngineError as error:
        raise ConfigError(f"model.path={path}: {error}") from error
    return policy


def load_trained(model: ModelConfig, saved: Mapping[str, Any], *, device: torch.device) -> nn.Module:
    """The policy of a run as a checkpoint saved it (`saved_state`), with its adapters if it has any."""
    policy = load_policy(model.path, dtype=model.dtype, device=device, trust_remote_code=model.trust_remote_code)
    if model.lora.rank:
        add_adapters(policy, model.lora, seed=0, vision=model.train_vision)
    else:
        freeze_vision(policy, model.train_vision)
        train_in_float32(policy)
    try:
        restore_state(policy, saved)
    except (RuntimeError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"the checkpoint does not fit the model {model.path}: {str(error)[:300]}") from error
    return policy


def merge_trained(policy: nn.Module, model: ModelConfig) -> nn.Module:
    """The policy with its adapters merged: their product is added to the weights. Unchanged without adapters."""
    if not model.lora.rank:
        return policy
    device = next(policy.parameters()).device
    plain = load_policy(model.path, dtype="float32", device=device, trust_remote_code=model.trust_remote_code)
    plain.load_state_dict(dict(merged_weights(policy)))
    return plain


def checkpoint_layers(model: nn.Module) -> None:
    """Turn on gradient checkpointing: recompute each decoder layer in the backward pass instead of keeping activations.

    Layers checkpoint only in training mode. Only the layers are put into it, so dropout stays off.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    cast(Any, model).gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True


def compile_layers(decoder: nn.Module) -> None:
    """Compile each layer of a decoder in place; compiling the whole model would take far longer.

    Projections of the same input are fused first: in compiled code, joining their weights costs nothing.
    """
    watch_compilation()
    fuse_projections(decoder, trained=True)
    # The layers of all models of a run share one code object: leave room for its variants (with and without gradient,
    # adapters on and off, one shape and any shape).
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    for layer in cast(Any, decoder).layers:
        layer.compile()
