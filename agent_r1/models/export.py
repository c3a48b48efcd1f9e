"""The export of a run: the type its weights are written in, and what rounding to that type costs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from agent_r1.config import Config
from agent_r1.errors import ConfigError, ExportError, raising
from agent_r1.files import atomic_write, replace_folder
from agent_r1.models.lora import merged_weights
from agent_r1.models.pretrained import no_progress_bars, open_model
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


def stored_bytes(state: Any) -> int:
    """Bytes of the tensors in a nested state; what two of them share is stored once."""
    sizes: dict[int, int] = {}
    unseen = [state]
    while unseen:
        entry = unseen.pop()
        if isinstance(entry, torch.Tensor):
            storage = entry.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
        elif isinstance(entry, Mapping):
            unseen.extend(entry.values())
        elif isinstance(entry, list | tuple):
            unseen.extend(entry)
    return sum(sizes.values())
