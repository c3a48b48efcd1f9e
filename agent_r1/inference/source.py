"""What to load for inference: the weights and the settings behind a model's name or a run's folder.

    MODEL   a Hugging Face folder or id, or a GGUF file: weights alone; a recipe adds tools, environment and reward
    RUN     the folder of a run: its `config.yaml` has the settings, `hf/` or its newest checkpoint the weights

With an engine behind a chat API, MODEL is the model's name at the server, and a run gives the settings alone.

No weights are read here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from agent_r1.config import Config, Overrides, load_config, override_texts, quoted
from agent_r1.engines import takes_messages
from agent_r1.errors import CheckpointError, ConfigError, did_you_mean
from agent_r1.models import gguf_folder, is_gguf, unpack_gguf
from agent_r1.runs import RunFolder, find_damage, list_checkpoints

Say = Callable[[str], None]
"""Tells the user something, such as that a file is converted."""

_MAX_TOKENS = 1024
"""Maximum tokens per turn for a model without a recipe."""
_MAX_CONTEXT = 32768
"""Maximum context of such a model, unless rollout.context_length says otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentSource:
    """Where an agent's weights and settings are."""

    label: str
    """Its name, for people: the folder's last part, or the hub id."""
    config: Config
    """Its settings. `model.path` has the weights; with a `checkpoint`, the model that was trained."""
    has_recipe: bool
    """Whether tools, environment and reward are known; otherwise it is a plain chat model."""
    run: RunFolder | None = None
    """The run it comes from; None for a model."""
    checkpoint: tuple[int, Path] | None = None
    """The step and the folder of the checkpoint that holds the weights; None: `config.model.path` has them."""


def find_source(
    model_or_run: str | Path,
    *,
    recipe: str | Path | None = None,
    overrides: Overrides = (),
    step: int | None = None,
    checkpoint: bool = False,
) -> AgentSource:
    """The weights and settings that a name stands for. `step` picks a checkpoint of a run; `checkpoint` takes the
    newest one even where there is an exported model.

    Raises `ConfigError` when it is neither a run nor a model, and `CheckpointError` for a run without weights.
    """
    path, texts = Path(model_or_run), override_texts(overrides)
    if any(text.lstrip("+").startswith(("model.path=", "model=")) for text in texts):
        raise ConfigError(f"the model is {model_or_run}; leave model.path out, or give the other model in its place")
    folder = _run_at(path)
    if folder is not None:
        return _of_run(folder, recipe, texts, step, checkpoint=checkpoint)
    if step is not None:
        raise ConfigError(f"{model_or_run} is a model, and only a run has checkpoints; leave the step out")
    config = load_config(recipe, [*texts, f"model.path={quoted(str(model_or_run))}"])
    at_server = takes_messages(config)
    if at_server:
        config.engine.servers.model = config.engine.servers.model or str(model_or_run)
    else:
        _check_is_model(path)
    if recipe is None:
        keys = {text.partition("=")[0].lstrip("+") for text in texts}
        if "rollout.max_tokens" not in keys:
            config.rollout.max_tokens = _MAX_TOKENS
        if "trainer.micro_batch_tokens" not in keys:  # it bounds the context, and nothing is trained here
            config.trainer.micro_batch_tokens = _MAX_CONTEXT
    label = path.parent.name if path.name == RunFolder(path.parent).model.name else path.name
    return AgentSource(
        label=label if path.exists() and not at_server else str(model_or_run),
        config=_as_it_is(config, str(model_or_run)),
        has_recipe=recipe is not None,
    )


def _run_config(folder: RunFolder, recipe: str | Path | None, texts: list[str]) -> Config:
    """The settings of a run, or of a recipe that is named in its place; the tool format stays the run's."""
    trained = folder.read_config()
    config = load_config(trained if recipe is None else recipe, texts)
    if recipe is not None:
        return replace(config, model=replace(config.model, tool_format=trained.model.tool_format))
    return config


def recipe_of(source: AgentSource) -> Path | None:
    """The folder of its recipe; `ConfigError` when it is not here."""
    recipe = source.config.recipe
    if recipe is not None and not Path(recipe).is_dir():
        raise ConfigError(
            f"{source.label} was trained with the recipe {recipe}, which is not here; run this in the folder it was "
            "trained in, or name the recipe (--recipe FOLDER)"
        )
    return None if recipe is None else Path(recipe)


def _of_run(
    folder: RunFolder, recipe: str | Path | None, texts: list[str], step: int | None, *, checkpoint: bool
) -> AgentSource:
    config = _run_config(folder, recipe, texts)
    label = folder.path.resolve().name
    if takes_messages(config):
        if step is not None:
            raise ConfigError("a step names a checkpoint to load here, and the server has its own weights")
        return AgentSource(label=label, config=config, has_recipe=True, run=folder)
    if step is None and not checkpoint and (folder.model / "config.json").is_file():
        return AgentSource(label=label, config=_as_it_is(config, str(folder.model)), has_recipe=True, run=folder)
    saved = _checkpoint(folder, step)
    trained = folder.read_config().model
    model = replace(trained, path=_gguf_folder(trained.path))
    return AgentSource(
        label=f"{label} (step {saved[0]})",
        config=replace(config, model=model, sft=replace(config.sft, folder=None)),
        has_recipe=True,
        run=folder,
        checkpoint=saved,
    )


def _as_it_is(config: Config, path: str) -> Config:
    """The configuration with these weights: without a warm start, preparations or adapters, which they include."""
    model = replace(config.model, path=path, prepare=None, lora=replace(config.model.lora, rank=0))
    return replace(config, model=model, sft=replace(config.sft, folder=None))


def _checkpoint(folder: RunFolder, step: int | None) -> tuple[int, Path]:
    """The checkpoint of a step, else the newest one; damaged ones are passed over and left as they are."""
    checkpoints = list_checkpoints(folder.checkpoints)
    if step is not None and step not in dict(checkpoints):
        steps = ", ".join(str(number) for number, _ in checkpoints) or "none"
        raise CheckpointError(
            f"{folder.path} has no checkpoint of step {step}; there are: {steps} (trainer.save_every and "
            "trainer.keep_checkpoints decide which are kept)"
        )
    candidates = [entry for entry in reversed(checkpoints) if step in (None, entry[0])]
    damages: list[str] = []
    for number, path in candidates:
        damage = find_damage(path)
        if damage is None:
            return number, path
        damages.append(f"{path} ({damage})")
    if damages:
        raise CheckpointError(f"every checkpoint that could be used is damaged: {'; '.join(damages)}")
    if folder.has_model:
        raise CheckpointError(
            f"the run {folder.path} has its model (hf/) and no checkpoint, which this needs: train it with "
            "trainer.keep_checkpoints=1 or more"
        )
    raise CheckpointError(
        f"the run {folder.path} has neither an exported model (hf/) nor a checkpoint: it has not saved a step yet, "
        "writes no checkpoints (trainer.keep_checkpoints=0), or they were deleted. Train it first, or name a model"
    )


def unpacked(path: str, say: Say) -> str:
    """The folder of a model; a GGUF file is converted into the cache the first time."""
    if not is_gguf(path):
        return path
    if not gguf_folder(Path(path)).is_dir():
        say(f"{path} is converted once, into the cache")
    return str(unpack_gguf(Path(path)))


def _gguf_folder(path: str) -> str:
    """The folder that a GGUF file was converted into for training."""
    return str(gguf_folder(Path(path))) if is_gguf(path) else path


def _run_at(path: Path) -> RunFolder | None:
    folder = RunFolder(path)
    return folder if folder.config.is_file() else None


def _check_is_model(path: Path) -> None:
    """Refuse a folder that is neither a run nor a model, and a missing one; hub ids pass."""
    if path.is_dir() and not (path / "config.json").is_file():
        runs = sorted(entry.name for entry in path.iterdir() if _run_at(entry) is not None)
        inside = " It is a recipe: name its run, or a model with --recipe." if (path / "base.yaml").is_file() else ""
        inside = f" It contains runs: {', '.join(runs[:8])}; name one of them." if runs else inside
        raise ConfigError(
            f"{path} is neither a run (it has no config.yaml) nor a model (it has no config.json).{inside}"
        )
    if path.is_file() and not is_gguf(path):
        raise ConfigError(f"{path} is a file; give a run's folder, a Hugging Face folder or id, or a GGUF file")
    in_runs = Path("runs") / path
    if not path.exists() and _run_at(in_runs) is not None:
        raise ConfigError(f"{path} does not exist. Did you mean the run {in_runs}?")
    if not path.exists() and path.parent.is_dir() and (str(path.parent) != "." or path.suffix == ".gguf"):
        names = [entry.name for entry in path.parent.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
        raise ConfigError(f"{path} does not exist. {did_you_mean(path.name, names)}")
