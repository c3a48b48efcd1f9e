"""`export_agent`: a model of a run as a Hugging Face folder with a model card."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agent_r1.chat import load_tokenizer
from agent_r1.errors import CheckpointError, ConfigError, ExportError
from agent_r1.images import is_vision_model
from agent_r1.inference.model_card import CardFacts, model_card
from agent_r1.inference.source import AgentSource, Say, find_source, unpacked
from agent_r1.models import (
    choose_device,
    copy_model,
    export_adapters,
    export_model,
    export_policy,
    load_model,
    load_trained,
)
from agent_r1.runs import RunFolder, base_model
from agent_r1.training import load_checkpoint
from agent_r1.types import SamplingParams

LoraForm = Literal["merged", "apart"]
_MODEL_FILES = ("config.json", "adapter_config.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """What an export wrote."""

    folder: Path
    """The Hugging Face folder."""
    step: int | None
    """The training step of the checkpoint it was made from; None: the model as it was exported or given."""
    note: str | None = None
    """What rounding the weights changed, in words; None when nothing was rounded."""


def export_agent(
    model_or_run: str | Path,
    out: str | Path,
    *,
    lora: LoraForm = "merged",
    step: int | None = None,
    force: bool = False,
    licence: str | None = None,
    say: Say = lambda text: None,
) -> Exported:
    """Write a run's model, or a model, to `out`: complete or not at all.

    Args:
        model_or_run: The folder of a run; or a Hugging Face folder or id, or a GGUF file.
        out: The folder to write. One that exists is refused, unless `force` and it holds a model.
        lora: `merged`: adapters are added to the weights. `apart`: a PEFT folder with the adapters alone.
        step: The step of a run's checkpoint; by default the run's final model, else its newest checkpoint.
        force: Replace the model in `out`.
        licence: The identifier of the licence for the model card; without one the card asks for it.
        say: Told what takes long.
    """
    folder = Path(out)
    source = _source(model_or_run, lora, step)
    _check_out(folder, source, force=force)
    facts = CardFacts(
        name=folder.resolve().name,
        run=source.run,
        step=_step_of_card(source),
        adapters=lora == "apart",
        base=_base(model_or_run, source, lora),
        licence=licence,
        reads_images=is_vision_model(source.config.model.path),
    )
    files = {"README.md": model_card(facts)}
    folder.parent.mkdir(parents=True, exist_ok=True)
    if source.checkpoint is not None:
        return _export_checkpoint(source, source.checkpoint, folder, lora, files)
    path = unpacked(source.config.model.path, say)
    if Path(path).is_dir():
        copy_model(Path(path), folder, files=files)
    else:
        loaded = load_model(path, device="cpu")
        export_model(loaded.model, loaded.tokenizer, folder, files=files)
    return Exported(folder=folder, step=None)


def _source(model_or_run: str | Path, lora: LoraForm, step: int | None) -> AgentSource:
    """Where the weights are; adapters apart are only in checkpoints."""
    given = RunFolder.of_model(Path(model_or_run))
    run = RunFolder(Path(model_or_run)) if given is None else given
    if not run.config.is_file():
        if lora == "apart":
            raise ConfigError(f"{model_or_run} is a model: its adapters, if it had any, are merged. Name the run")
        return find_source(model_or_run, step=step)
    if lora == "apart":
        if not run.read_config().model.lora.rank:
            raise ConfigError(f"{run.path} was trained without LoRA (model.lora.rank=0): leave --lora apart out")
        return find_source(run.path, step=step, checkpoint=True)
    return find_source(run.path, step=step)


def _base(model_or_run: str | Path, source: AgentSource, lora: LoraForm) -> str:
    """The model that the card names: adapters belong to what was trained, a whole model comes from the root of it."""
    if source.run is None:
        return str(model_or_run)
    return source.config.model.path if lora == "apart" else base_model(source.run.read_config().model.path)


def _step_of_card(source: AgentSource) -> int | None:
    """The step that the card names; None for the checkpoint of a finished run's last step."""
    if source.checkpoint is None or source.run is None:
        return None
    summary = source.run.read_summary()
    return None if summary is not None and summary["steps"] == source.checkpoint[0] else source.checkpoint[0]


def _check_out(folder: Path, source: AgentSource, *, force: bool) -> None:
    """Refuse to replace anything but a model, and the model that is exported."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ExportError(f"{folder} is not a folder; name another one")
    read_folders = [Path(source.config.model.path), *([] if source.run is None else [source.run.path])]
    place = folder.resolve()
    for path in read_folders:
        if path.exists() and (place == path.resolve() or place in path.resolve().parents):
            raise ExportError(f"{folder} holds what is exported ({path}); name another folder")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not force:
        raise ExportError(f"{folder} exists; name another folder, or replace the model in it with --force")
    if not any((folder / name).is_file() for name in _MODEL_FILES) or (folder / "config.yaml").is_file():
        raise ExportError(f"{folder} holds something else than a model, which --force does not replace; name another")


def _export_checkpoint(
    source: AgentSource, checkpoint: tuple[int, Path], folder: Path, lora: LoraForm, files: dict[str, str]
) -> Exported:
    config = source.config
    state: Any = load_checkpoint(*checkpoint).state
    try:
        saved = state["learner"]["policy"]
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{checkpoint[1]} is not the checkpoint of a run of this version") from error
    policy = load_trained(config.model, saved, device=choose_device("cpu"))
    tokenizer = load_tokenizer(config.model.path, trust_remote_code=config.model.trust_remote_code)
    if lora == "apart":
        settings = config.model.lora
        export_adapters(policy, tokenizer, folder, settings, base_model=config.model.path, files=files)
        return Exported(folder=folder, step=checkpoint[0])
    rollout = config.rollout
    sampling = SamplingParams(temperature=rollout.temperature, top_p=rollout.top_p, top_k=rollout.top_k)
    rounding = export_policy(policy, tokenizer, folder, config, sampling=sampling, files=files)
    return Exported(folder=folder, step=checkpoint[0], note=None if rounding is None else str(rounding))
