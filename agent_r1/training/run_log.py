"""Where a training run reports: tracker, console and health monitor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from agent_r1.console import RunConsole
from agent_r1.errors import StorageError
from agent_r1.evaluation import HealthMonitor
from agent_r1.runs import Tracker
from agent_r1.training.checkpoints.last_step import Progress


class RunLog:
    """Reports metrics and warnings of the run's current step."""

    def __init__(self, *, tracker: Tracker, console: RunConsole, health: HealthMonitor, progress: Progress) -> None:
        self._tracker = tracker
        self._console = console
        self._health = health
        self._progress = progress

    @property
    def warnings(self) -> list[str]:
        """Every warning of the run, each with its step."""
        return self._health.warnings

    def step(self, metrics: Mapping[str, float], *, num_steps: int, seconds: float) -> None:
        """Report the metrics of the step that has just finished."""
        self._tracker.log(self._progress.step, metrics)
        self._console.step_line(self._progress.step, num_steps, metrics, seconds)
        for warning in self._health.observe(metrics):
            self._console.warn(warning)

    def evaluation(self, metrics: Mapping[str, float]) -> None:
        """Report the metrics of an evaluation."""
        self._tracker.log(self._progress.step, metrics)
        for warning in self._health.observe_evaluation(metrics):
            self._console.warn(warning)

    def keep_warning(self, message: str) -> None:
        """Add a warning to the summary without printing it."""
        self._health.warnings.append(f"step {self._progress.step}: {message}")

    @contextmanager
    def tolerate_storage_errors(self, metric: str, advice: str = "") -> Iterator[None]:
        """Inside, a file that cannot be written is a warning and is counted as `metric`; the run continues without."""
        try:
            yield
        except StorageError as error:
            message = f"{error}. The run continues without it{advice}"
            self._console.warn(message)
            self.keep_warning(message)
            self._tracker.log(self._progress.step, {metric: 1.0})
