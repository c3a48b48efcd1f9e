"""The registry of trackers, and all trackers of a run as one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from agent_r1.config import Config, algorithm_name, to_yaml
from agent_r1.errors import TrackerError, require_installed
from agent_r1.files import write_atomically
from agent_r1.registry import Registry, takes
from agent_r1.runs.model_names import model_name
from agent_r1.runs.tracking.background import BackgroundTracker, guarded
from agent_r1.runs.tracking.protocol import Tracker

FAILED = "error/failed_trackers"
"""Steps that a tracker could not log; counted in the JSONL file."""
IDS_FILE = "trackers.json"
"""In the run's folder: the ids under which trackers know the run, so that a resumed run continues there."""
_PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow-skinny"}
"""By tracker, which is also the module and the extra: what is installed."""


TrackerFactory = Callable[[Config, Path], Tracker]
"""`factory(config, folder)`, with the folder of the run."""

tracker_factories: Registry[TrackerFactory] = Registry(
    "tracker", accepts=takes(2), expected="a function of a configuration and the folder of a run"
)


class Trackers:
    """All trackers of a run: the JSONL file, which the run cannot do without, and others, which it can.

    A tracker that cannot be opened, raises or hangs costs a warning and a count in the JSONL file, never the run and
    never its time: each has a thread of its own.
    """

    def __init__(
        self, jsonl: Tracker, others: Sequence[BackgroundTracker], warn: Callable[[str], None] = lambda text: None
    ) -> None:
        self._jsonl = jsonl
        self._others = others
        self._warn = warn
        self._warned: set[str] = set()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Pass the metrics to each; report what failed since the last call."""
        self._jsonl.log(step, metrics)
        for tracker in self._others:
            tracker.log(step, metrics)
        self._report()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=error is not None)

    def close(self, *, failed: bool = False) -> None:
        """Close each, and wait a while for those that have not written everything yet. With `failed`, those that can
        show it mark the run as failed."""
        for tracker in self._others:
            tracker.stop(failed=failed)
        for tracker in self._others:
            tracker.wait()
        try:
            self._report()
        finally:
            self._jsonl.close()

    def _report(self) -> None:
        for tracker in self._others:
            for failure in tracker.failures():
                if failure.step is not None:
                    self._jsonl.log(failure.step, {FAILED: 1.0})
                if failure.reason not in self._warned:
                    self._warned.add(failure.reason)
                    self._warn(failure.reason)


def open_each(config: Config, folder: Path, warn: Callable[[str], None]) -> list[BackgroundTracker]:
    """The trackers beside the JSONL file. One that cannot be opened is a warning; a missing package is an error."""
    trackers: list[BackgroundTracker] = []
    check_trackers(config)
    for name in dict.fromkeys(config.tracking.trackers):
        factory = tracker_factories.get(name)
        try:
            with guarded(name, "cannot be opened"):
                trackers.append(BackgroundTracker(name, factory(config, folder)))
        except TrackerError as error:
            warn(f"{error}. The run continues without it; metrics.jsonl has every metric")
    return trackers


def check_trackers(config: Config) -> None:
    """Raise when a tracker's name is unknown or its package is not installed."""
    for name in dict.fromkeys(config.tracking.trackers):
        tracker_factories.get(name)
        if name in _PACKAGES:
            require_installed(name, _PACKAGES[name], name, f"the tracker '{name}'")


def plain_config(config: Config) -> dict[str, Any]:
    """The configuration as nested mappings of plain values."""
    plain: dict[str, Any] = yaml.safe_load(to_yaml(config))
    return plain


def run_tags(config: Config) -> dict[str, str]:
    """What a run can be found by in a tracker: algorithm, model, recipe."""
    recipe = "" if config.recipe is None else Path(config.recipe).name
    return {"algorithm": algorithm_name(config), "model": model_name(config.model.path), "recipe": recipe}


def saved_id(folder: Path, tracker: str) -> str | None:
    """The id under which a tracker knows the run in this folder; None for a new run."""
    try:
        ids = json.loads((folder / IDS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    run_id = ids.get(tracker) if isinstance(ids, dict) else None
    return run_id if isinstance(run_id, str) else None


def save_id(folder: Path, tracker: str, run_id: str) -> None:
    """Remember the id of the run in a tracker."""
    ids = {name: other for name in ("wandb", "mlflow") if (other := saved_id(folder, name)) is not None}
    write_atomically(folder / IDS_FILE, json.dumps({**ids, tracker: run_id}, indent=2) + "\n")
