"""The folders of the study on this machine: a warm start per task, and the runs that start there."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping

from agent_r1.errors import DataError
from agent_r1.runs import DEFAULT_KEYS, RunFolder, read_evaluation, read_runs
from agent_r1.version import __version__
from benchmarks.claims.study.plan import Run
from benchmarks.claims.study.results import Start, Trained
from benchmarks.common.recipe_runs import RecipeRuns, Settings

_WITHOUT_CURVES = {"time/step", "loss/sft"}


class Place(RecipeRuns):
    """The folders of one task on this machine."""

    def read_start(self, base: Settings) -> Start | None:
        """The warm start that this machine has; None when it is missing or was made with other settings."""
        found = self.read_evaluation(base)
        if found is None:
            return None
        digest = hashlib.sha256()
        for file in self.weights():
            digest.update(file.read_bytes())
        return Start(
            task=self.recipe,
            model=self.label,
            digest=digest.hexdigest()[:16],
            settings=dict(base),
            tasks=found["tasks"],
            sources=found["sources"],
            solved=found["solved"],
            metrics=_rounded(found["metrics"]),
        )

    def collect(self, run: Run, start: Start, seconds: float, commit: str) -> Trained:
        """The result of a finished run, whose folder is then removed."""
        folder = RunFolder(self.folder / run.name)
        [record] = read_runs([folder.path])
        after = read_evaluation(folder.evaluation("validation", "after"))
        if list(after.tasks) != list(start.tasks):
            raise DataError(f"{folder.path} was evaluated on other tasks than its warm start")
        trained = Trained(
            task=run.task,
            model=self.label,
            variant=run.variant.name,
            seed=run.seed,
            settings=run.settings,
            start=start.digest,
            solved=[_short(value) for value in after.solved],
            metrics=_rounded(after.metrics),
            curves={
                key: [[line["step"], _short(line[key])] for line in record.lines if key in line]
                for key in DEFAULT_KEYS
                if key in record.metric_names and key not in _WITHOUT_CURVES
            },
            seconds=round(seconds, 1),
            minutes=round(record.minutes, 2),
            peak_gpu_gb=None if record.peak_gpu_gb is None else round(record.peak_gpu_gb, 1),
            version=__version__,
            commit=commit,
        )
        shutil.rmtree(folder.path)
        return trained


def _short(value: float) -> float:
    """A number in few letters: 0 and 1 instead of 0.0 and 1.0."""
    return int(value) if float(value).is_integer() else float(f"{value:.4g}")


def _rounded(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: _short(value) for name, value in sorted(metrics.items())}
