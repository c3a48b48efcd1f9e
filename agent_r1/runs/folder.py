"""The layout of a run folder, and reading and writing what is in it.

runs/<name>/config.yaml               the resolved configuration
            fingerprints.json         hashes of data and model
            run_id                    a random name of the run, which is in its checkpoints too
            metrics.jsonl             one line per training step or evaluation
            trajectories/<n>.jsonl    the rollouts of step n; eval_before.jsonl, eval_after.jsonl
            credit/<n>.jsonl          what the learner made of them, on request
            warnings.jsonl            warnings of the health monitor, each with its step
            checkpoints/step_<n>/     state to resume from: state.pt with state.json, and shards/ of a run on several
                                      ranks
            evaluations/              how well each task was solved: <split>_before.json, <split>_after.json; with
                                      settings other than the run's, <split>_<hash of them>_before.json
            hf/                       the trained model
            hf.json                   sizes and checksums of its files, for a warm start
            summary.json              the result; a run without it is unfinished
            tensorboard/, wandb/      what trackers write, on request; trackers.json: their ids of the run
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_r1.codec import read_json, write_json
from agent_r1.config import Config, from_yaml
from agent_r1.errors import CheckpointError, ConfigError, StorageError
from agent_r1.files import atomic_write, remove_leftovers, write_atomically
from agent_r1.runs.fingerprints import FILE as FINGERPRINTS
from agent_r1.runs.lock import FolderLock
from agent_r1.runs.model_names import MODEL_FOLDER
from agent_r1.runs.tracking import parse_metrics_line, read_metrics

RUN_MARKS = {"config.yaml", "metrics.jsonl"}
"""A folder with one of these is a run's."""
RUN_FILES = {
    *RUN_MARKS,
    FINGERPRINTS,
    "run_id",
    "trajectories",
    "credit",
    "warnings.jsonl",
    "view_index.sqlite",
    "checkpoints",
    "evaluations",
    "profile",
    MODEL_FOLDER,
    "hf.json",
    "summary.json",
    "tensorboard",
    "trackers.json",
}
"""What a run writes, and the index that `agent-r1 view` makes of it."""


class RunFolder:
    """The paths of one run, and what is read from and written to them."""

    def __init__(self, path: Path, lock: FolderLock | None = None) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.fingerprints = path / FINGERPRINTS
        self.run_id = path / "run_id"
        self.metrics = path / "metrics.jsonl"
        self.trajectories = path / "trajectories"
        self.pictures = self.trajectories / "images"
        self.credit = path / "credit"
        self.warnings = path / "warnings.jsonl"
        self.checkpoints = path / "checkpoints"
        self.evaluations = path / "evaluations"
        self.profile = path / "profile"
        self.model = path / MODEL_FOLDER
        self.model_checksums = path / "hf.json"
        self.summary = path / "summary.json"
        self.tensorboard = path / "tensorboard"
        self.demonstrations_digest = path / "demonstrations.sha256"
        self._lock = lock

    @property
    def has_model(self) -> bool:
        """Whether a model was exported, which is the last thing that a warm start does."""
        return (self.model / "config.json").is_file()

    @classmethod
    def of(cls, config: Config, lock: FolderLock | None = None) -> RunFolder:
        """The folder of the run that a configuration describes."""
        return cls(Path(config.run.folder) / config.run.name, lock)

    @classmethod
    def of_model(cls, model: Path) -> RunFolder | None:
        """The folder of the run that exported a model; None for a model from elsewhere."""
        folder = cls(model.parent)
        return folder if model.name == folder.model.name and folder.config.is_file() else None

    def ensure_owned(self) -> None:
        """Raise `RunLockedError` when another process has taken the folder over: this one must not write any more."""
        if self._lock is not None:
            self._lock.ensure_held()

    def ensure_in_place(self) -> None:
        """The same, and `StorageError` when the folder of a live run was moved or deleted: what is written from now on
        would make another one, without configuration and metrics."""
        self.ensure_owned()
        if self._lock is not None and not self.config.exists():
            raise StorageError(
                f"{self.path} was moved or deleted while this run was live: there is no {self.config.name}. Put the "
                "folder back, and the same command resumes from its last checkpoint"
            )

    def release(self) -> None:
        """Give the folder back to other processes, when this one is about to end."""
        if self._lock is not None:
            self._lock.release()

    def step_trajectories(self, step: int) -> Path:
        """The file with the rollouts of one training step."""
        return self.trajectories / f"{step}.jsonl"

    def remove_leftovers(self) -> None:
        """Remove what killed processes were writing. Only the holder of the lock may do this, and only evaluations are
        written by other processes too."""
        self.ensure_owned()
        for folder in (self.path, self.trajectories, self.pictures, self.credit, self.checkpoints, self.profile):
            remove_leftovers(folder)
        remove_leftovers(self.evaluations, is_shared=True)

    def step_credit(self, step: int) -> Path:
        """The file with the credit of these rollouts, for a run with `tracking.record_credit`."""
        return self.credit / f"{step}.jsonl"

    def eval_trajectories(self, name: str) -> Path:
        """The file with the greedy rollouts of an evaluation: `before` or `after`."""
        return self.trajectories / f"eval_{name}.jsonl"

    def evaluation(self, split: str, stage: str, settings: Sequence[str] = ()) -> Path:
        """The record of an evaluation on a split; the stage is `before` or `after`, `settings` are what was changed in
        the run's configuration."""
        digest = hashlib.sha256("\n".join(settings).encode()).hexdigest()[:8]
        return self.evaluations / (f"{split}_{digest}_{stage}.json" if settings else f"{split}_{stage}.json")

    def trajectory_files(self) -> list[Path]:
        """The files of rollouts that exist: evaluations first, then steps in order."""
        return sorted(self.trajectories.glob("*.jsonl"), key=lambda file: (step_of(file) or 0, file.name))

    def read_run_id(self) -> str | None:
        """The random name of the run; None for a run of an earlier version."""
        try:
            return self.run_id.read_text(encoding="utf-8").strip() or None
        except (OSError, UnicodeDecodeError):
            return None

    def read_config(self) -> Config:
        """The configuration of the run; `ConfigError` when the file is missing or not one."""
        try:
            return from_yaml(self.config.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, ConfigError) as error:
            raise ConfigError(f"{self.config} cannot be read: {error}") from error

    def read_summary(self) -> dict[str, Any] | None:
        """The summary of a finished run; None while it is unfinished."""
        if not self.summary.is_file():
            return None
        try:
            summary = read_json(self.summary.read_bytes())
        except ValueError:
            summary = None
        if not isinstance(summary, dict) or not isinstance(summary.get("steps"), int):
            raise CheckpointError(
                f"{self.summary} is not the summary of a run ({self.summary.stat().st_size} bytes, without a number of "
                "steps); delete it to resume the run, or set run.resume=never to start a new one"
            )
        return summary

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Mark the run as finished. Numbers that are not finite become null."""
        write_atomically(self.summary, write_json(summary, indent=2) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """The logged lines; a last line cut short by a kill is left out."""
        return read_metrics(self.metrics)

    def add_warning(self, step: int, rule: str, text: str) -> None:
        """Append a warning, so that it can be read while the run is unfinished."""
        with atomic_write(self.warnings), self.warnings.open("a", encoding="utf-8") as file:
            file.write(write_json({"step": step, "rule": rule, "text": text}) + "\n")

    def read_warnings(self) -> list[dict[str, Any]]:
        """The warnings so far: `{"step", "rule", "text"}`. Lines that cannot be read are left out."""
        if not self.warnings.is_file():
            return []
        lines = [parse_metrics_line(line) for line in self.warnings.read_bytes().splitlines()]
        return [line for line in lines if line is not None]

    def rewind(self, step: int) -> None:
        """Delete what was logged after `step`, so that a resumed run writes each line once."""
        lines = [line for line in self.read_metrics() if line["step"] <= step]
        write_atomically(self.metrics, "".join(write_json(line) + "\n" for line in lines))
        if self.warnings.is_file():
            warnings = [line for line in self.read_warnings() if line["step"] <= step]
            write_atomically(self.warnings, "".join(write_json(line) + "\n" for line in warnings))
        for file in (*self.trajectory_files(), *self.credit.glob("*.jsonl")):
            if (step_of(file) or 0) > step:
                file.unlink()
        self.summary.unlink(missing_ok=True)


def step_of(file: Path) -> int | None:
    """The training step of a trajectory file; None for an evaluation's.

    >>> step_of(Path("trajectories/12.jsonl")), step_of(Path("trajectories/eval_after.jsonl"))
    (12, None)
    """
    return int(file.stem) if file.stem.isdigit() else None


def base_model(path: str) -> str:
    """The model at the root of a model that runs have exported: for runs/warm/hf, what runs/warm started from."""
    models = [Path(path)]
    while (folder := RunFolder.of_model(models[-1])) is not None:
        try:
            models.append(Path(folder.read_config().model.path))
        except ConfigError:
            break
        if models[-1] in models[:-1]:
            break
    return str(models[-1])
