"""MLflow (`tracking.trackers=[mlflow]`). It logs to `MLFLOW_TRACKING_URI`, by default to the file `mlflow.db` in the
working directory, which needs no server."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agent_r1.config import Config
from agent_r1.errors import MissingExtraError
from agent_r1.runs.tracking.base import plain_config, run_tags, save_id, saved_id, tracker_factories

_MAX_VALUE = 500
_MAX_BATCH = 100


@tracker_factories.register("mlflow")
class MlflowTracker:
    """A run of an MLflow experiment. A resumed run continues under the same id."""

    def __init__(self, config: Config, folder: Path) -> None:
        try:
            from mlflow import MlflowClient, entities
        except ImportError as error:
            raise MissingExtraError("mlflow-skinny", "mlflow", "the tracker 'mlflow'") from error
        # A client of its own: the fluent functions have one active run per process, which may be the user's.
        self._client: Any = MlflowClient()
        self._metric: Any = entities.Metric
        self._status = "FINISHED"
        run_id = saved_id(folder, "mlflow")
        if run_id is not None:
            self._run_id = run_id
            self._client.update_run(run_id, status="RUNNING")
            return
        experiment = self._experiment_id(config.tracking.project)
        tags = {**run_tags(config), **dict.fromkeys(config.tracking.tags, "true")}
        run = self._client.create_run(experiment, run_name=config.run.name, tags=tags)
        self._run_id = str(run.info.run_id)
        params = [entities.Param(key, value) for key, value in flat_params(plain_config(config))]
        for first in range(0, len(params), _MAX_BATCH):
            self._client.log_batch(self._run_id, params=params[first : first + _MAX_BATCH])
        save_id(folder, "mlflow", self._run_id)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the finite metrics of one step."""
        now = int(time.time() * 1000)
        entries = [
            self._metric(metric_name(name), value, now, step) for name, value in metrics.items() if math.isfinite(value)
        ]
        for first in range(0, len(entries), _MAX_BATCH):
            self._client.log_batch(self._run_id, metrics=entries[first : first + _MAX_BATCH])

    def mark_failed(self) -> None:
        """Show the run as failed when it is closed."""
        self._status = "FAILED"

    def close(self) -> None:
        """Mark the run as finished or failed; a resumed run opens it again."""
        self._client.set_terminated(self._run_id, status=self._status)

    def _experiment_id(self, name: str) -> str:
        experiment = self._client.get_experiment_by_name(name)
        return str(self._client.create_experiment(name) if experiment is None else experiment.experiment_id)


def metric_name(name: str) -> str:
    """A metric's name in the letters that MLflow allows.

    >>> metric_name("eval/all/best@4")
    'eval/all/best_4'
    """
    return re.sub(r"[^\w\-./ ]", "_", name, flags=re.ASCII)


def flat_params(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The values of nested mappings by dotted key, as text that MLflow accepts.

    >>> list(flat_params({"run": {"name": "a"}, "imports": ["b"]}))
    [('run.name', 'a'), ('imports', '["b"]')]
    """
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flat_params(value, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            yield f"{prefix}{metric_name(str(key))}", text[:_MAX_VALUE]
