"""The folder of a run: what is in it, and whether a run goes on or starts afresh.

runs/<name>/config.yaml, metrics.jsonl, trajectories/<step>.jsonl, checkpoints/step_<n>/, hf/, summary.json
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from agent_r1.config import Config, from_yaml, to_yaml
from agent_r1.errors import CheckpointError, ConfigError
from agent_r1.rollout import write_atomically
from agent_r1.tracking import JsonlTracker, TensorBoardTracker, Tracker, Trackers, WandbTracker, read_metrics
from agent_r1.training.checkpoint import list_checkpoints


class RunFolder:
    """Paths of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.metrics = path / "metrics.jsonl"
        self.trajectories = path / "trajectories"
        self.checkpoints = path / "checkpoints"
        self.model = path / "hf"
        self.summary = path / "summary.json"
        self.tensorboard = path / "tensorboard"

    def read_summary(self) -> dict[str, Any] | None:
        """What the finished run wrote, or None while it is unfinished."""
        if not self.summary.is_file():
            return None
        summary: dict[str, Any] = json.loads(self.summary.read_text())
        return summary

    def read_metrics(self) -> list[dict[str, Any]]:
        """The logged lines; a last line cut short by a kill is left out."""
        return read_metrics(self.metrics)

    def rewind(self, step: int) -> None:
        """Forget what was logged after `step`, so that a resumed run writes each line once."""
        kept = [line for line in self.read_metrics() if line["step"] <= step]
        write_atomically(self.metrics, "".join(json.dumps(line) + "\n" for line in kept))
        for file in self.trajectories.glob("*.jsonl"):
            if file.stem.isdigit() and int(file.stem) > step:
                file.unlink()
        self.summary.unlink(missing_ok=True)


def open_run(config: Config) -> tuple[RunFolder, bool]:
    """The folder of this run and whether it goes on from a checkpoint. Never deletes a run: an old one in the way is
    moved aside."""
    folder = RunFolder(Path(config.run.folder) / config.run.name)
    mode = config.run.resume
    if mode not in ("auto", "never", "must"):
        raise ConfigError(f"run.resume is '{mode}'; known: auto, never, must")
    has_checkpoint = bool(list_checkpoints(folder.checkpoints))
    if mode == "must" and not has_checkpoint:
        raise CheckpointError(f"run.resume=must, but there is no checkpoint in {folder.checkpoints}")
    goes_on = has_checkpoint and (mode == "must" or (mode == "auto" and _same_run(folder, config)))
    if folder.path.exists() and not goes_on:
        _move_aside(folder.path)
    if not goes_on:  # a run that goes on writes it when its checkpoint fits: a refused one must leave what was there
        write_atomically(folder.config, to_yaml(config))
    return folder, goes_on


def _same_run(folder: RunFolder, config: Config) -> bool:
    """An unfinished run of this configuration; its length and what it only reports may have changed."""
    if not folder.config.is_file():
        return False
    summary = folder.read_summary()
    if summary is not None and int(summary["steps"]) >= config.trainer.steps:
        return False
    try:
        old = from_yaml(folder.config.read_text())
    except ConfigError:
        return False
    return _essence(old) == _essence(config)


def _essence(config: Config) -> Config:
    essence = copy.deepcopy(config)
    essence.run = type(config.run)()
    essence.tracking = type(config.tracking)()
    essence.trainer.steps = essence.trainer.save_every = essence.trainer.keep_checkpoints = 0
    return essence


def _move_aside(path: Path) -> None:
    number = 1
    while (aside := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    path.rename(aside)


def base_model(path: str) -> str:
    """The model at the root of a model that runs of ours have made: of runs/warm/hf, what runs/warm started from."""
    parents = [Path(path)]
    while (written := parents[-1].parent / "config.yaml").is_file() and parents[-1].name == "hf":
        try:
            parents.append(Path(from_yaml(written.read_text()).model.path))
        except ConfigError:
            break
        if parents[-1] in parents[:-1]:
            break
    return str(parents[-1])


def open_trackers(config: Config, folder: RunFolder) -> Trackers:
    """All that a run's metrics are written to."""
    trackers: list[Tracker] = [JsonlTracker(folder.metrics)]
    if config.tracking.tensorboard:
        trackers.append(TensorBoardTracker(folder.tensorboard))
    if config.tracking.wandb_project is not None:
        settings: dict[str, Any] = {"config": to_yaml(config)}
        trackers.append(WandbTracker(config.tracking.wandb_project, config.run.name, settings))
    return Trackers(trackers)
