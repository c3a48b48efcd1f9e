"""Export of a policy as a Hugging Face folder, and what rounding its weights costs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from agent_r1.config import Config, LoraConfig
from agent_r1.errors import ConfigError, ExportError, raising
from agent_r1.files import atomic_write, replace_folder
from agent_r1.images import model_file
from agent_r1.models.lora import adapter_targets, merged_weights, require_peft, saved_state
from agent_r1.models.pretrained import no_progress_bars, open_model
from agent_r1.models.vision import vision_family
from agent_r1.types import SamplingParams

CPU = torch.device("cpu")

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
"""What describes the image processor of a model."""


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
    policy: nn.Module,
    tokenizer: Any,
    folder: Path,
    config: Config,
    *,
    sampling: SamplingParams | None = None,
    files: Mapping[str, str] | None = None,
) -> Rounding | None:
    """Write the policy of a run to `folder`, with further text files. Returns what rounding changed, None when nothing
    was rounded.

    Any failure is a `StorageError` or an `ExportError`.
    """
    with raising(ExportError, f"{folder} cannot be exported"):
        dtype = export_dtype(config)
        export_model(policy, tokenizer, folder, dtype=dtype, sampling=sampling, files=files)
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
    files: Mapping[str, str] | None = None,
) -> None:
    """Write a Hugging Face folder that `from_pretrained` (and vLLM, and `model.path`) can open.

    Weights are written as `dtype`, by default each in its own type. The generation config has the stop tokens and, with
    `sampling`, the sampling parameters of training; those of the base model are left out. `files` are further text
    files by name.
    """
    weights = _exported_weights(policy, dtype)
    with new_folder(folder, num_bytes=stored_bytes(weights)) as partial, no_progress_bars():
        _set_generation(policy, sampling)
        cast(Any, policy).save_pretrained(partial, state_dict=weights)
        _let_others_read(partial, like=partial / "config.json")
        if dtype is not None:
            _note_dtype(partial / "config.json", dtype)
        tokenizer.save_pretrained(partial)
        _copy_processor(policy, partial)
        _write_texts(partial, files)


def _copy_processor(policy: nn.Module, folder: Path) -> None:
    """Copy the files of the image processor from where a model that reads images was opened; training does not change
    them. A model that was opened nowhere has none."""
    config: Any = getattr(policy, "config", None)
    source = getattr(config, "_name_or_path", "")
    if vision_family(config) is None or not source:
        return
    for name in PROCESSOR_FILES:
        file = model_file(source, name)
        if file is not None and not (folder / name).exists():
            shutil.copyfile(file, folder / name)


def _let_others_read(folder: Path, *, like: Path) -> None:
    """Give weight files the permissions of any other file: safetensors makes them readable for their owner alone, and
    an inference server may be another user's."""
    for file in folder.glob("*.safetensors"):
        file.chmod(like.stat().st_mode)


def export_adapters(
    policy: nn.Module,
    tokenizer: Any,
    folder: Path,
    settings: LoraConfig,
    *,
    base_model: str,
    files: Mapping[str, str] | None = None,
) -> None:
    """Write the LoRA adapters of a policy as a PEFT folder, which `PeftModel.from_pretrained(base, folder)` opens. The
    weights of the base model are not in it."""
    from safetensors.torch import save_file

    peft = require_peft(settings)
    state = saved_state(policy)["adapters"]
    lora_config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        base_model_name_or_path=base_model,
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=adapter_targets(policy),
        inference_mode=True,
    )
    weights = {
        f"base_model.model.{name.replace('.default.', '.')}": tensor.detach().cpu().contiguous()
        for name, tensor in state.items()
    }
    with (
        raising(ExportError, f"{folder} cannot be exported"),
        new_folder(folder, num_bytes=stored_bytes(weights)) as partial,
    ):
        lora_config.save_pretrained(str(partial))
        save_file(weights, partial / "adapter_model.safetensors", metadata={"format": "pt"})
        _let_others_read(partial, like=partial / "adapter_config.json")
        tokenizer.save_pretrained(partial)
        _write_texts(partial, files)


def copy_model(source: Path, folder: Path, *, files: Mapping[str, str] | None = None) -> None:
    """Copy a model's folder; `files` are further text files by name, in place of those of the source."""
    paths = [path for path in sorted(source.iterdir()) if path.is_file() and not path.name.startswith(".")]
    num_bytes = sum(path.stat().st_size for path in paths)
    with raising(ExportError, f"{folder} cannot be exported"), new_folder(folder, num_bytes=num_bytes) as partial:
        for path in paths:
            shutil.copyfile(path, partial / path.name)
        _write_texts(partial, files)


@contextmanager
def new_folder(folder: Path, *, num_bytes: int) -> Iterator[Path]:
    """A folder to write into; at the end of the block it replaces `folder`, unless the block raised."""
    partial = folder.with_name(f".{folder.name}.partial")
    with atomic_write(folder, partial=partial, num_bytes=num_bytes):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        replace_folder(partial, folder)


def _write_texts(folder: Path, files: Mapping[str, str] | None) -> None:
    for name, text in (files or {}).items():
        (folder / name).write_text(text, encoding="utf-8")


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
    old_config = getattr(model, "generation_config", None)
    settings = {name: getattr(old_config, name, None) for name in tokens}
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
    content = json.loads(file.read_text())
    for part in (content, *(part for part in content.values() if isinstance(part, dict) and "dtype" in part)):
        part["dtype"] = str(dtype).removeprefix("torch.")
    file.write_text(json.dumps(content, indent=2) + "\n")


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
