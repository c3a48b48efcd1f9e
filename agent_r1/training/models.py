"""Loading and exporting the policy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from agent_r1.engines.local.attention_features import check_attention
from agent_r1.engines.local.fused import fuse_projections
from agent_r1.errors import ConfigError, EngineError
from agent_r1.files import atomic_write, replace_folder
from agent_r1.training.checkpoint import stored_bytes
from agent_r1.training.head import check_head
from agent_r1.training.lora import merged_weights
from agent_r1.training.visibility import TRIE_ATTENTION
from agent_r1.types import SamplingParams


def choose_device(name: str) -> torch.device:
    """`auto` is a GPU when there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    num_gpus = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= num_gpus:
        raise ConfigError(f"trainer.device={name}: there are {num_gpus} GPUs here; use auto or cpu")
    return device


def open_model(path: str, *, dtype: torch.dtype, trust_remote_code: bool = False) -> nn.Module:
    """A causal language model from a Hugging Face folder or id, on the CPU, with the trainer's attention."""
    from transformers import AutoModelForCausalLM

    try:
        with no_progress_bars():
            model = AutoModelForCausalLM.from_pretrained(
                path, dtype=dtype, trust_remote_code=trust_remote_code, attn_implementation=TRIE_ATTENTION
            )
    except (OSError, ValueError) as error:
        raise ConfigError(f"the model '{path}' cannot be loaded: {error}") from error
    return cast(nn.Module, model)


def load_policy(path: str, *, dtype: str, device: torch.device, trust_remote_code: bool = False) -> nn.Module:
    """The model that a run trains; one that would be computed otherwise than it is meant is refused."""
    policy = open_model(path, dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code)
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


def export_model(
    policy: nn.Module,
    tokenizer: Any,
    folder: Path,
    *,
    dtype: torch.dtype | None = None,
    sampling: SamplingParams | None = None,
) -> None:
    """Write a Hugging Face folder that `from_pretrained` (and vLLM, and `model.path`) can open.

    Weights are written as `dtype`, by default each as its own. What the folder says about generation is which tokens
    end it and, with `sampling`, how the policy was sampled from; what its base model said is left out.
    """
    beside = folder.with_name(f"{folder.name}.partial")
    weights = _exported_weights(policy, dtype)
    with atomic_write(folder, partial=beside, num_bytes=stored_bytes(weights)), no_progress_bars():
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        _set_generation(policy, sampling)
        cast(Any, policy).save_pretrained(beside, state_dict=weights)
        if dtype is not None:
            _note_dtype(beside / "config.json", dtype)
        tokenizer.save_pretrained(beside)
        replace_folder(beside, folder)


def _exported_weights(policy: nn.Module, dtype: torch.dtype | None) -> dict[str, Tensor]:
    """The merged weights as they are written. Copies wait on the CPU: a second model might not fit beside a run's."""
    parameters = policy.named_parameters(remove_duplicate=False)
    types = {name.replace(".base_layer.", "."): dtype or parameter.dtype for name, parameter in parameters}
    own = {parameter.data_ptr() for parameter in policy.parameters()}
    weights: dict[str, Tensor] = {}
    copies: dict[int, Tensor] = {}  # of the policy's own weights: those that are tied stay tied
    for name, tensor in merged_weights(policy, device=torch.device("cpu")):
        wanted, place = types.get(name, tensor.dtype), tensor.data_ptr()
        if tensor.dtype == wanted:
            weights[name] = tensor
        elif place in own:
            weights[name] = copies.setdefault(place, tensor.detach().to(wanted).cpu())
        else:
            weights[name] = tensor.to(wanted)
    return weights


def _set_generation(policy: nn.Module, sampling: SamplingParams | None) -> None:
    """Let the model say how to generate as it was trained. Its base model's temperature or penalties belong to other
    weights, and `transformers` refuses to write some of them."""
    from transformers import GenerationConfig

    model = cast(Any, policy)
    tokens = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    known = getattr(model, "generation_config", None)
    settings = {name: getattr(known, name, None) for name in tokens}
    if sampling is not None:
        settings |= {
            "do_sample": True,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
        }
    model.generation_config = GenerationConfig(**settings)  # type: ignore[no-untyped-call]
    for name in getattr(model.config, "_get_generation_parameters", dict)():  # refused in a model's configuration
        setattr(model.config, name, None)


def _note_dtype(file: Path, dtype: torch.dtype) -> None:
    """`transformers` writes down the type of the weights in memory; note that of the weights in the folder."""
    written = json.loads(file.read_text())
    for part in (written, *(part for part in written.values() if isinstance(part, dict) and "dtype" in part)):
        part["dtype"] = str(dtype).removeprefix("torch.")
    file.write_text(json.dumps(written, indent=2) + "\n")
