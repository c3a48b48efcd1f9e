"""Where a training run reports: tracker, console and health monitor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

from agent_r1.console import RunConsole
from agent_r1.errors import StorageError
from agent_r1.evaluation import HealthMonitor, HealthWarning
from agent_r1.runs import RunFolder, Tracker
from agent_r1.training.checkpoints.last_step import Progress

STORAGE_RULE = "not written"
"""The rule of a warning about a file that could not be written."""


class RunLog:
    """Reports metrics and warnings of the run's current step."""

    def __init__(
        self,
        *,
        tracker: Tracker,
        console: RunConsole,
        health: HealthMonitor,
        progress: Progress,
        folder: RunFolder | None,
    ) -> None:
        self._tracker = tracker
        self._console = console
        self._health = health
        self._progress = progress
        self._folder = folder

    @property
    def warnings(self) -> list[str]:
        """Every warning of the run, each with its step."""
        return self._health.warnings

    def step(self, metrics: Mapping[str, float], *, num_steps: int, seconds: float) -> None:
        """Report the metrics of the step that has just finished."""
        self._tracker.log(self._progress.step, metrics)
        self._console.step_line(self._progress.step, num_steps, metrics, seconds)
        self._warn(self._health.observe(metrics))

    def evaluation(self, metrics: Mapping[str, float]) -> None:
        """Report the metrics of an evaluation."""
        self._tracker.log(self._progress.step, metrics)
        self._warn(self._health.observe_evaluation(metrics))

    def keep_warning(self, message: str) -> None:
        """Add a warning to the summary without printing it."""
        self._health.warnings.append(f"step {self._progress.step}: {message}")
        self._store(STORAGE_RULE, message)

    def _warn(self, warnings: Iterable[HealthWarning]) -> None:
        for warning in warnings:
            self._console.warn(warning)
            self._store(warning.rule, warning)

    def _store(self, rule: str, text: str) -> None:
        if self._folder is None:
            return
        with suppress(StorageError):  # the summary has it too
            self._folder.add_warning(self._progress.step, rule, text)

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
