"""The results of the study on disk: one file of JSON lines per task and model, a line per warm start and per run.

    {"kind": "start", "task": "alfworld", "model": "SmolLM2-135M-Instruct", "digest": "9c1f...", "settings": {...},
     "tasks": ["a", "b"], "sources": ["new_room", "known_room"], "solved": [0, 1], "metrics": {...}}
    {"kind": "run", "task": "alfworld", "model": "SmolLM2-135M-Instruct", "variant": "gigpo", "seed": 0,
     "settings": {"algorithm": "gigpo", ...}, "start": "9c1f...", "solved": [1, 1], "metrics": {...},
     "curves": {"reward/success": [[1, 0.4], [2, 0.5]]}, "seconds": 51.2, "version": "0.1.0", "commit": "4ab..."}

A line is written at once and as a whole, so a study that is killed keeps every run that had ended.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent_r1.codec import write_json
from agent_r1.errors import DataError
from agent_r1.runs import EvaluationRecord, RunRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """A warm start, evaluated on the validation tasks."""

    task: str
    """The task."""
    model: str
    """The model that was tuned."""
    digest: str
    """A hash of its weights."""
    settings: Mapping[str, str]
    """The settings of the base."""
    tasks: Sequence[str]
    """The ids of the validation tasks."""
    sources: Sequence[str]
    """The data source of each."""
    solved: Sequence[float]
    """How well each was solved, greedily."""
    metrics: Mapping[str, float]
    """All figures of the evaluation."""

    def by_task(self, solved: Sequence[float] | None = None) -> dict[str, float]:
        """How well each task was solved by this model, or by one that was trained from it."""
        record = EvaluationRecord(
            split="validation",
            model=self.model,
            step=0,
            tasks=self.tasks,
            sources=self.sources,
            solved=self.solved if solved is None else solved,
            metrics=self.metrics,
            intervals={},
        )
        return record.by_task()


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A finished run."""

    task: str
    """The task."""
    model: str
    """The model whose warm start was trained."""
    variant: str
    """The variant."""
    seed: int
    """The seed."""
    settings: Mapping[str, str]
    """All its settings but the seed."""
    start: str
    """The digest of its warm start."""
    solved: Sequence[float]
    """How well each validation task was solved after training, greedily, in the order of the warm start's."""
    metrics: Mapping[str, float]
    """All figures of that evaluation."""
    curves: Mapping[str, Sequence[Sequence[float]]]
    """Logged metrics as pairs of step and value."""
    seconds: float
    """Seconds from the start of its process to the end."""
    minutes: float
    """Minutes of its training steps."""
    peak_gpu_gb: float | None
    """Peak GPU memory; None on a CPU."""
    version: str
    """The version of this package."""
    commit: str
    """The commit of the working tree; with a `+` when it had changes."""

    @property
    def key(self) -> tuple[str, str, int]:
        """What tells it from the other runs of a model."""
        return self.task, self.variant, self.seed

    @property
    def success(self) -> float:
        """The share of tasks solved."""
        return sum(self.solved) / len(self.solved)


@dataclass(frozen=True, kw_only=True)
class Results:
    """What a folder holds for one task and model."""

    task: str
    """The task."""
    model: str
    """The model."""
    starts: Mapping[str, Start]
    """The warm starts, by their digests."""
    runs: Mapping[tuple[str, str, int], Trained]
    """The finished runs, by their keys."""

    def solved(self, run: Trained) -> dict[str, float]:
        """How well each task was solved after a run."""
        return self.starts[run.start].by_task(run.solved)


def results_file(folder: Path, task: str, model: str) -> Path:
    """Where the results of a task and a model are."""
    return folder / f"{task}_{model}.jsonl"


def append_result(folder: Path, result: Start | Trained) -> None:
    """Add a line to its file."""
    file = results_file(folder, result.task, result.model)
    folder.mkdir(parents=True, exist_ok=True)
    whole = file.read_bytes() if file.is_file() else b""
    line = write_json({"kind": "start" if isinstance(result, Start) else "run", **asdict(result)})
    with file.open("ab") as stream:
        if whole and not whole.endswith(b"\n"):  # what a killed process was writing
            stream.truncate(whole.rfind(b"\n") + 1)
        stream.write(f"{line}\n".encode())
        stream.flush()
        os.fsync(stream.fileno())


def read_results(folder: Path) -> list[Results]:
    """The results of a folder, sorted by task and model; `DataError` names a line that is none."""
    return [_read(file) for file in sorted(folder.glob("*.jsonl"))]


def results_of(folder: Path, task: str, model: str) -> Results:
    """The results of one task and model; empty when there are none."""
    file = results_file(folder, task, model)
    return _read(file) if file.is_file() else Results(task=task, model=model, starts={}, runs={})


def _read(file: Path) -> Results:
    *lines, _ = file.read_text(encoding="utf-8").split("\n")  # after the last: what a killed process wrote
    starts: dict[str, Start] = {}
    runs: dict[tuple[str, str, int], Trained] = {}
    for number, line in enumerate(lines, start=1):
        try:
            found: dict[str, Any] = json.loads(line)
            if found.pop("kind") == "start":
                start = Start(**found)
                start.by_task()
                starts[start.digest] = start
            else:
                run = Trained(**found)
                starts[run.start].by_task(run.solved)
                runs[run.key] = run
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{file}, line {number} is not a result of the study ({type(error).__name__}: {error}); delete the "
                "line, and benchmarks/claims/what_works.py makes its run again"
            ) from error
    task, _, model = file.stem.partition("_")
    return Results(task=task, model=model, starts=starts, runs=runs)


def mean_record(runs: Sequence[Trained], label: str) -> RunRecord:
    """The means of what some seeds logged, for plots."""
    values: dict[float, dict[str, list[float]]] = {}
    for run in runs:
        for metric, points in run.curves.items():
            for step, value in points:
                values.setdefault(step, {}).setdefault(metric, []).append(value)
    lines = [
        {"step": step, **{metric: sum(found) / len(found) for metric, found in by_metric.items()}}
        for step, by_metric in sorted(values.items())
    ]
    return RunRecord(label=label, lines=lines, config_text="", summary={})
