"""Trackers write metrics: always to a JSONL file, on request to TensorBoard, Weights & Biases and trackers of your own.

A tracker of your own is a function under a name, in a module that `imports` lists:

    @tracker_factories.register("mine")
    def make_mine(config, folder): return MyTracker(folder / "mine.csv")

    tracking.trackers=[mine]
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from agent_r1.config import Config
from agent_r1.errors import DataError, MissingExtraError
from agent_r1.files import atomic_write
from agent_r1.registry import Registry, takes

NOT_FINITE = "error/non_finite_metrics"
"""How many metrics of a step were NaN or infinite."""


class Tracker(Protocol):
    """Takes the metrics of one step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write them."""
        ...

    def close(self) -> None:
        """Finish writing."""
        ...


TrackerFactory = Callable[[Config, Path], Tracker]
"""`factory(config, folder)`, with the folder of the run."""

tracker_factories: Registry[TrackerFactory] = Registry(
    "tracker", accepts=takes(2), expected="a function of a configuration and the folder of a run"
)


class JsonlTracker:
    """One JSON object per line: `{"step": 3, "reward/mean": 0.5, ...}`. Each line is on disk when `log` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with atomic_write(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a line. JSON has no NaN and no infinity: such values are left out and counted."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        if len(finite) < len(metrics):
            finite[NOT_FINITE] = float(len(metrics) - len(finite))
        rounded = {name: float(f"{value:.6g}") for name, value in sorted(finite.items())}
        with atomic_write(self._path):
            self._file.write(json.dumps({"step": step, **rounded}, allow_nan=False) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file, which retries a failed write; `log` has already raised for it."""
        with suppress(OSError):
            self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines that a `JsonlTracker` wrote; a last line cut short by a kill is left out. Any other line that cannot be
    read is a `DataError`: the lines after it must not be lost silently."""
    if not path.is_file():
        return []
    raw = path.read_bytes().split(b"\n")
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(raw, start=1):
        if not text.strip():
            continue
        line = parse_metrics_line(text)
        if line is None:
            if not any(rest.strip() for rest in raw[number:]):
                break
            raise DataError(
                f"line {number} of {path} is not a line of metrics (JSON in UTF-8 with a step); restore the file, or "
                "remove that line"
            )
        lines.append(line)
    return lines


def parse_metrics_line(text: bytes) -> dict[str, Any] | None:
    """The metrics of one line; None when it is not JSON in UTF-8 with a step."""
    try:
        line = json.loads(text.decode("utf-8"))
    except ValueError:  # no JSON, or not UTF-8
        return None
    return line if isinstance(line, dict) and isinstance(line.get("step"), int) else None


class TensorBoardTracker:
    """TensorBoard event files."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise MissingExtraError("tensorboard", "tensorboard", "tracking.tensorboard=true") from error
        self._event: Any = event_pb2.Event
        self._summary: Any = summary_pb2.Summary
        self._folder = folder
        with atomic_write(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._writer: Any = EventFileWriter(str(folder))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one scalar per metric."""
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        event = self._event(wall_time=time.time(), step=step, summary=self._summary(value=values))
        with atomic_write(self._folder):
            self._writer.add_event(event)
            self._writer.flush()

    def close(self) -> None:
        """Flush and close; `log` has already raised for what could not be written."""
        with suppress(OSError):
            self._writer.close()


class WandbTracker:
    """Weights & Biases."""

    def __init__(self, project: str, name: str, config: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError as error:
            raise MissingExtraError("wandb", "wandb", "tracking.wandb_project") from error
        self._run: Any = wandb.init(project=project, name=name, config=dict(config))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log one step."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class Trackers:
    """Several trackers as one."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = trackers

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Pass the metrics to each."""
        for tracker in self._trackers:
            tracker.log(step, metrics)

    def close(self) -> None:
        """Close each."""
        for tracker in self._trackers:
            tracker.close()
