"""The folder of a run: what is in it, and whether a run resumes or a new one begins.

runs/<name>/config.yaml, fingerprints.json, metrics.jsonl, trajectories/<step>.jsonl, checkpoints/step_<n>/, hf/,
summary.json

Whoever opens a run holds its lock (`run_lock`): a folder that is in use is never moved.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_r1.config import Config, config_differences, from_yaml, to_yaml
from agent_r1.errors import CheckpointError, ConfigError
from agent_r1.files import write_atomically
from agent_r1.runs import fingerprints
from agent_r1.runs.checkpoints import list_checkpoints
from agent_r1.runs.lock import FolderLock, lock_folder
from agent_r1.runs.names import name_problem
from agent_r1.runs.tracking import JsonlTracker, TensorBoardTracker, Tracker, Trackers, WandbTracker, read_metrics

_MARKS = {"config.yaml", "metrics.jsonl"}
_PARTS = {*_MARKS, fingerprints.FILE, "trajectories", "checkpoints", "hf", "summary.json", "tensorboard"}
_MAX_LISTED = 20


class RunFolder:
    """Paths of one run."""

    def __init__(self, path: Path, lock: FolderLock | None = None) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.fingerprints = path / fingerprints.FILE
        self.metrics = path / "metrics.jsonl"
        self.trajectories = path / "trajectories"
        self.checkpoints = path / "checkpoints"
        self.model = path / "hf"
        self.summary = path / "summary.json"
        self.tensorboard = path / "tensorboard"
        self._lock = lock

    def ensure_owned(self) -> None:
        """Raise `RunLockedError` when another process has taken the folder over: nothing may be written any more."""
        if self._lock is not None:
            self._lock.ensure_held()

    def read_summary(self) -> dict[str, Any] | None:
        """What the finished run wrote, or None while it is unfinished."""
        if not self.summary.is_file():
            return None
        try:
            summary = json.loads(self.summary.read_text(encoding="utf-8"))
        except ValueError:
            summary = None
        if not isinstance(summary, dict) or not isinstance(summary.get("steps"), int):
            raise CheckpointError(
                f"{self.summary} is not the summary of a run ({self.summary.stat().st_size} bytes, without a number of "
                "steps); delete it to resume the run, or set run.resume=never to begin a new one"
            )
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """What starting a run would do with its folder."""

    resumes: bool
    """Whether it resumes from a checkpoint."""
    story: str
    """What is there and what happens, for people; "" where there is nothing."""


def plan_opening(config: Config) -> Opening:
    """Decide whether a run resumes. Raises `CheckpointError` where `run.resume=must` cannot be had. Changes nothing."""
    folder = RunFolder(Path(config.run.folder) / config.run.name)
    mode = config.run.resume
    if mode not in ("auto", "never", "must"):
        raise ConfigError(f"run.resume is '{mode}'; known: auto, never, must")
    steps = [step for step, _ in list_checkpoints(folder.checkpoints)]
    if mode == "must" and not steps:
        raise CheckpointError(f"run.resume=must, but there is no checkpoint in {folder.checkpoints}")
    if not folder.path.exists():
        return Opening(resumes=False, story="")
    _check_is_run(folder.path)
    aside = f"It is moved to {_free_name(folder.path)}, and a new run begins."
    if mode == "never":
        return Opening(resumes=False, story=f"{folder.path} holds a run, and run.resume=never. {aside}")
    if not steps:
        return Opening(resumes=False, story=f"{folder.path} holds a run without a checkpoint. {aside}")
    summary = folder.read_summary()
    finished = summary is not None and summary["steps"] >= config.trainer.steps and not _lacks_export(summary)
    if mode == "auto" and finished:
        return Opening(resumes=False, story=f"{folder.path} holds a finished run. {aside}")
    changed, replaced = _differences(folder, config)
    if mode == "must":
        return _must_resume(folder, changed, replaced)
    if not changed and not replaced:
        return Opening(resumes=True, story="")
    return Opening(
        resumes=False,
        story=f"{folder.path} holds a run with a checkpoint of step {steps[-1]} that differs from this one:\n"
        f"{_listed([*changed, *replaced])}\n{aside} To resume the old one instead, stop this run, give the folder its "
        f"name back and restore what differs"
        + (", or resume it with the new configuration: run.resume=must" if not replaced else ""),
    )


def _must_resume(folder: RunFolder, changed: list[str], replaced: list[str]) -> Opening:
    if replaced:
        raise CheckpointError(
            f"run.resume=must, but data or model of {folder.path} have changed since its start:\n{_listed(replaced)}\n"
            "Restore it, or begin a new run with run.resume=never"
        )
    story = f"resuming {folder.path} with another configuration:\n{_listed(changed)}" if changed else ""
    return Opening(resumes=True, story=story)


def open_run(
    config: Config, *, say: Callable[[str], None] = lambda text: None, lock: FolderLock | None = None
) -> tuple[RunFolder, bool]:
    """The folder of this run and whether it resumes from a checkpoint. `say` hears what is there and what happens.
    Never deletes a run: an old one in the way is moved aside."""
    problem = name_problem(config.run.name)
    if problem is not None:
        raise ConfigError(f"run.name={config.run.name!r} {problem}")
    folder = RunFolder(Path(config.run.folder) / config.run.name, lock)
    opening = plan_opening(config)
    if opening.story:
        say(opening.story)
    if opening.resumes:
        # Logs that cannot be read are an error before a model is loaded. The configuration is written when the
        # checkpoint fits: a resume that is refused must leave what was there.
        folder.read_metrics()
        return folder, True
    if folder.path.exists():
        folder.ensure_owned()
        folder.path.rename(_free_name(folder.path))
    write_atomically(folder.config, to_yaml(config))
    write_fingerprints(folder, config)
    return folder, False


def write_fingerprints(folder: RunFolder, config: Config) -> None:
    """Note what the run's data and model contain."""
    write_atomically(folder.fingerprints, json.dumps(fingerprints.run_fingerprints(config), indent=2) + "\n")


@contextmanager
def locked_run(config: Config) -> Iterator[FolderLock]:
    """Inside, no other process uses the run's folder; `RunLockedError` names the one that does."""
    with lock_folder(Path(config.run.folder) / config.run.name) as lock:
        yield lock


def _differences(folder: RunFolder, config: Config) -> tuple[list[str], list[str]]:
    """The keys that differ from those of the run in a folder, and the files whose content does. A run's length and what
    it only reports may differ."""
    try:
        old = from_yaml(folder.config.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return [f"{folder.config} is missing"], []
    except (ConfigError, UnicodeDecodeError) as error:
        return [f"{folder.config} cannot be read: {str(error).splitlines()[0]}"], []
    changed = config_differences(_essence(old), _essence(config))
    other_paths = (old.model.path, old.data) != (config.model.path, config.data)
    known = {} if other_paths else fingerprints.read_fingerprints(folder.path)
    replaced = fingerprints.fingerprint_differences(known, fingerprints.run_fingerprints(config)) if known else []
    return changed, replaced


def _lacks_export(summary: Mapping[str, Any]) -> bool:
    """A run that did all its steps and could not export its model; going on with it exports it."""
    return "model" in summary and summary["model"] is None


def _essence(config: Config) -> Config:
    essence = copy.deepcopy(config)
    essence.run = type(config.run)()
    essence.tracking = type(config.tracking)()
    essence.algorithm.preset = None  # only a name: what it set is compared key by key
    essence.trainer.steps = essence.trainer.save_every = essence.trainer.keep_checkpoints = 0
    return essence


def _check_is_run(path: Path) -> None:
    """Refuse a folder that no run has made: it would be moved."""
    if not path.is_dir():
        raise ConfigError(f"{path} is a file; choose another run.name")
    names = {entry.name for entry in path.iterdir() if not entry.name.endswith(".partial")}
    if names and not names & _MARKS and not names <= _PARTS:
        raise ConfigError(
            f"{path} exists and is not the folder of a run: it has no config.yaml and no metrics.jsonl. It is left "
            "alone; choose another run.name"
        )


def _listed(lines: Iterable[str]) -> str:
    entries = list(lines)
    more = [f"and {len(entries) - _MAX_LISTED} more"] if len(entries) > _MAX_LISTED else []
    return "\n".join(f"  - {line}" for line in [*entries[:_MAX_LISTED], *more])


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return aside


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
