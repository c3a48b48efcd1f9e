"""Warm starts: tuning a model on demonstrations, as a run of its own or as the model that a recipe's runs start from.

    agent-r1 sft quickstart model.path=MODEL sft.data=[demos.jsonl] run.name=warm     # runs/warm/hf

All runs of a recipe that sets `sft.folder` start from the model in there, which the first of them makes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from agent_r1.config import AlgorithmConfig, Config, OptimizerConfig, RunConfig, from_yaml
from agent_r1.console import RunConsole
from agent_r1.data import MAX_WORKERS, DemonstrationWorkers, load_demonstrations
from agent_r1.errors import ConfigError
from agent_r1.files import write_atomically
from agent_r1.interrupts import stop_signals
from agent_r1.learner import (
    Models,
    WeightGrowth,
    demonstration_batches,
    fit_demonstrations,
    make_compute,
    tune_layers,
)
from agent_r1.learner.packing import TRIE_ATTENTION
from agent_r1.metric_names import SFT_LOSS
from agent_r1.models import add_adapters, choose_device, export_policy, freeze_vision, load_policy
from agent_r1.runs import (
    FolderLock,
    RunFolder,
    find_model_damage,
    fingerprints,
    lock_folder,
    open_run,
    open_trackers,
    remove_stale_lock,
    seal_model,
)
from agent_r1.tools import num_cores
from agent_r1.training.model_check import check_model
from agent_r1.training.oom import explain_cuda_oom
from agent_r1.training.plan import make_plan
from agent_r1.training.prepare import warm_started_config
from agent_r1.training.tag_rows import warm_start_warning

_MAX_RESULT_BYTES = 2**30
"""Bytes of the tokenised demonstrations of one call: their images come along."""
_GUESSING_SHARE = 0.9
"""Of the loss of guessing: a model whose first loss is above has learned nothing yet."""
_RANDOM_WEIGHTS_RATE = 1e-3
"""Learning rates below are for models that were trained before."""
_RANDOM_WEIGHTS_SETTINGS = ("sft.learning_rate=3e-3", "sft.batch_size=16", "sft.steps=60")
"""A warm start that a tiny model makes in a minute or two on a laptop."""
_INTERRUPTED = "A warm start has no checkpoints: run the same command again to start it over."


def tune(config: Config, console: RunConsole, lock: FolderLock) -> Path:
    """Tune `model.path` on `sft.data`; returns the folder of the tuned model."""
    renderer = check_model(make_plan(config)).renderer
    if not config.sft.data:
        raise ConfigError("sft.data is empty; give one or more .jsonl or .parquet files of demonstrations")
    settings = config.sft
    shape = {"steps": settings.steps, "batch_size": settings.batch_size, "seed": config.trainer.seed}
    # A short run trains on few of them, and tokenising all would take longer than its steps.
    conversations = load_demonstrations(
        settings.data,
        renderer,
        choose=lambda number: chain.from_iterable(demonstration_batches(number, **shape)),
        tracked=partial(console.tracked, "tokenising demonstrations"),
        workers=_demonstration_workers(config, console),
    )
    device = choose_device(config.trainer.device)
    # A warm start has no checkpoints to resume from, and must not write into a run that has.
    folder, _ = open_run(replace(config, run=replace(config.run, resume="never")), say=console.info, lock=lock)
    policy = _load_untuned(config, device)
    compute = replace(make_compute(config, policy), temperature=1.0)
    tune_layers(config, Models(policy=policy, reference=None, critic=None, compute=compute))
    warning = warm_start_warning(
        policy, renderer.tokenizer, conversations, steps=settings.steps, learning_rate=settings.learning_rate
    )
    if warning is not None:
        console.warn(warning)
    growth = WeightGrowth(policy)
    num_tokens = int(cast(Any, policy).config.get_text_config().vocab_size)
    with (
        open_trackers(config, folder, console.warn) as tracker,
        console.progress("warm start", settings.steps) as bar,
    ):

        def note(step: int, loss: float) -> None:
            growth.check(**{"sft.learning_rate": settings.learning_rate})
            warning = _random_weights_warning(loss, config, tokens=num_tokens) if step == 0 else None
            if warning is not None:
                console.warn(warning)
            tracker.log(step + 1, {SFT_LOSS: loss})
            bar.advance(f"loss {loss:.3f}")
            if (step + 1) % max(1, settings.steps // 5) == 0:
                console.info(f"warm start: step {step + 1}/{settings.steps}  loss {loss:.3f}")

        with explain_cuda_oom(config), stop_signals() as stop, stop.leaving(_INTERRUPTED):
            fit_demonstrations(
                policy,
                conversations,
                **shape,
                learning_rate=settings.learning_rate,
                optimizer=config.optimizer,
                compute=compute,
                on_step=note,
            )
    if device.type == "cuda":
        console.info(f"warm start: at most {torch.cuda.max_memory_reserved(device) / 1e9:.1f} GB of GPU memory")
    rounding = export_policy(policy, renderer.tokenizer, folder.model, config)
    if rounding is not None:
        console.info(f"{rounding}")
    seal_model(folder)
    return folder.model


def _random_weights_warning(loss: float, config: Config, *, tokens: int) -> str | None:
    """What is wrong with a warm start whose first loss is that of guessing among all tokens, at a learning rate for a
    pretrained model; None where there is nothing to say."""
    settings, guessing = config.sft, math.log(tokens)
    if loss < _GUESSING_SHARE * guessing or settings.learning_rate >= _RANDOM_WEIGHTS_RATE:
        return None
    return (
        f"the loss of the first demonstrations, {loss:.2f}, is that of guessing ({guessing:.2f} for {tokens} tokens): "
        f"the model has random weights, and sft.learning_rate={settings.learning_rate:g}, {settings.steps} steps of "
        f"{settings.batch_size} are for a pretrained one. A tiny model learns more in less time with "
        f"{' '.join(_RANDOM_WEIGHTS_SETTINGS)} (docs/models.md)"
    )


def _demonstration_workers(config: Config, console: RunConsole) -> DemonstrationWorkers | None:
    """Worker processes for the cores of this machine; None where there are none."""
    try:
        from agent_r1.tools.workers import WorkerPool
    except ImportError:  # Windows
        return None
    pool = WorkerPool(min(num_cores(), MAX_WORKERS), max_result_bytes=_MAX_RESULT_BYTES)
    return DemonstrationWorkers(workers=pool, tool_format=config.model.tool_format, warn=console.warn)


def _load_untuned(config: Config, device: torch.device) -> nn.Module:
    """The model, with what is to be trained of it."""
    policy = load_policy(
        config.model.path,
        dtype=config.model.dtype,
        device=device,
        attention=TRIE_ATTENTION,
        trust_remote_code=config.model.trust_remote_code,
    )
    freeze_vision(policy, config.model.train_vision)
    if config.model.lora.rank:
        add_adapters(policy, config.model.lora, seed=config.trainer.seed, vision=config.model.train_vision)
    return policy


def ensure_warm_start(config: Config, console: RunConsole) -> Config:
    """The configuration of a run that starts from the model in `sft.folder`, which is made when it is missing;
    unchanged without `sft.folder`.

    A model made from another model, other demonstrations or other settings is moved aside, and so is one whose files
    are damaged.
    """
    if config.sft.folder is None:
        return config
    folder = RunFolder(Path(config.sft.folder))
    if _reason_to_make(folder, config) is not None:
        _make_warm_start(folder, config, console)
    remove_stale_lock(folder.path)
    return warm_started_config(config)


def _make_warm_start(folder: RunFolder, config: Config, console: RunConsole) -> None:
    """Of several runs that start together, one makes the warm start and the others wait for it."""
    with lock_folder(folder.path, wait=True, on_wait=console.info) as lock:
        reason = _reason_to_make(folder, config)
        if reason is not None:
            say = console.warn if _is_made(folder, config) else console.info  # damage is news
            say(f"{folder.path} {reason}: warm-starting {config.model.path}")
            tune(warm_start_recipe(config, folder.path), console, lock)
            write_atomically(folder.demonstrations_digest, _digest(config.sft.data))
            if torch.cuda.is_available():  # its memory must not count as that of the run
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()


def _reason_to_make(folder: RunFolder, config: Config) -> str | None:
    """Why a warm start is made in a folder; None when there is one that can be used. Its files are read once."""
    if not folder.path.exists():
        return "is not there yet"
    if not _is_made(folder, config):
        return "was made from another model, other demonstrations or settings"
    damage = find_model_damage(folder)
    if damage is None:
        return None
    return f"is damaged ({damage}; to use files that you changed yourself, delete {folder.model_checksums.name} there)"


def warm_start_recipe(config: Config, folder: Path) -> Config:
    """The run that makes a warm start in `folder`. Only the model, the demonstrations and the settings of `sft` shape
    it, not the run's seed, algorithm or optimizer: all runs of a recipe start from the same weights."""
    return replace(
        config,
        run=RunConfig(folder=str(folder.parent), name=folder.name, resume="never"),
        model=replace(config.model, lora=type(config.model.lora)()),
        algorithm=AlgorithmConfig(),
        optimizer=OptimizerConfig(),
        trainer=replace(config.trainer, seed=0),
        sft=replace(config.sft, folder=None, from_episode=None),
    )


def _is_made(folder: RunFolder, config: Config) -> bool:
    """Whether a folder holds what this configuration would make: same model, demonstrations and settings."""
    recipe = warm_start_recipe(config, folder.path)
    try:
        present = from_yaml(folder.config.read_text(encoding="utf-8"))
        digest = folder.demonstrations_digest.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ConfigError):
        return False
    same_model = replace(present.model, prepare=None) == replace(recipe.model, prepare=None)
    recorded = fingerprints.read_fingerprints(folder.path)
    same_weights = not recorded or not fingerprints.fingerprint_differences(
        _of_model(recorded), _of_model(fingerprints.run_fingerprints(recipe))
    )
    same_settings = same_model and present.sft == recipe.sft
    return folder.model.is_dir() and same_settings and same_weights and digest == _digest(config.sft.data)


def _of_model(all_fingerprints: Mapping[str, str]) -> dict[str, str]:
    """Only the model's fingerprints: a warm start reads no rows of a run."""
    return {name: value for name, value in all_fingerprints.items() if name.startswith("model.path ")}


def _digest(paths: Sequence[str]) -> str:
    """A hash of the demonstrations' files."""
    digest = hashlib.sha256()
    for path in map(Path, paths):
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()
