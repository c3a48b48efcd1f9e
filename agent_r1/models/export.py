"""Export of a policy as a Hugging Face folder, and what rounding its weights costs."""

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
    """What rounding the trained weights for the export changed."""

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
    """Write the policy of a run to `folder`. Returns what rounding changed, None when nothing was rounded.

    Any failure is a `StorageError` or an `ExportError`.
    """
    with raising(ExportError, f"{folder} cannot be exported"):
        dtype = export_dtype(config)
        export_model(policy, tokenizer, folder, dtype=dtype, sampling=sampling)
        with suppress(ConfigError):  # without the base model only the figure is missing
            return _rounding(policy, config, dtype)
    return None


def export_dtype(config: Config) -> torch.dtype:
    """`model.dtype`, or the type that the base model is stored in where that is wider.

    A float32 model that is trained with `model.dtype=bfloat16` is exported in float32.
    """
    from transformers import AutoConfig

    chosen: torch.dtype = getattr(torch, config.model.dtype)
    stored: Any = None
    with suppress(OSError, ValueError):  # the export also works after the base model was deleted
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

    Weights are written as `dtype`, by default each in its own type. The generation config has the stop tokens and, with
    `sampling`, the sampling parameters of training; those of the base model are left out.
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
    """The merged weights in the types they are written in. Copies are on the CPU: a second model might not fit on a
    GPU."""
    parameters = policy.named_parameters(remove_duplicate=False)
    types = {name.replace(".base_layer.", "."): dtype or parameter.dtype for name, parameter in parameters}
    pointers = {parameter.data_ptr() for parameter in policy.parameters()}
    weights: dict[str, Tensor] = {}
    copies: dict[int, Tensor] = {}  # of the policy's weights: tied ones stay tied
    for name, tensor in merged_weights(policy, device=torch.device("cpu")):
        target, pointer = types.get(name, tensor.dtype), tensor.data_ptr()
        if tensor.dtype == target:
            weights[name] = tensor
        elif pointer in pointers:
            weights[name] = copies.setdefault(pointer, tensor.detach().to(target).cpu())
        else:
            weights[name] = tensor.to(target)
    return weights


def _set_generation(policy: nn.Module, sampling: SamplingParams | None) -> None:
    """Set the generation config to that of training. The base model's temperature or penalties belong to other weights,
    and `transformers` refuses to write some of them."""
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
    # `transformers` refuses these in a model's configuration.
    for name in getattr(model.config, "_get_generation_parameters", dict)():
        setattr(model.config, name, None)


def _note_dtype(file: Path, dtype: torch.dtype) -> None:
    """Write the type of the exported weights: `transformers` writes that of the weights in memory."""
    written = json.loads(file.read_text())
    for part in (written, *(part for part in written.values() if isinstance(part, dict) and "dtype" in part)):
        part["dtype"] = str(dtype).removeprefix("torch.")
    file.write_text(json.dumps(written, indent=2) + "\n")


def stored_bytes(state: Any) -> int:
    """Bytes of the tensors in a nested state; shared storage counts once."""
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
