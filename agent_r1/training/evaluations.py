"""The evaluations of a training run: before its first step, between steps, after its last one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from agent_r1.config import Config, changed_settings, load_config
from agent_r1.console import RunConsole
from agent_r1.engines import takes_messages
from agent_r1.errors import ConfigError
from agent_r1.evaluation import Evaluation, evaluate
from agent_r1.metric_names import EVAL_PREFIX
from agent_r1.rollout import Rollout
from agent_r1.runs import EvaluationRecord, RunFolder, write_evaluation, write_trajectories
from agent_r1.seeds import Stream, mix_seed
from agent_r1.training.checkpoints.last_step import Progress
from agent_r1.training.reporting.run_log import RunLog
from agent_r1.types import SamplingParams, Task, Trajectory

_EVALUABLE = (
    *("eval.samples", "eval.temperature", "eval.max_tasks"),
    *("rollout.max_steps", "rollout.max_tokens", "rollout.context_length"),
    *("rollout.max_images", "rollout.max_episode_images"),
    *("rollout.concurrency", "rollout.deadline_seconds", "rollout.retries"),
    *("rollout.workers", "rollout.processes.*", "rollout.ray.*"),
    *("env.*", "tools.*", "engine.*", "trainer.device"),
)
"""What may be changed for the evaluation of a finished run. Sampling is that of `eval`, not that of `rollout`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """The evaluation before training."""

    metrics: Mapping[str, float] | None = None
    """None when there was none."""
    trajectories: Sequence[Trajectory] = field(default_factory=tuple)
    """Its greedy rollouts; a resumed run has only the metrics."""


async def evaluate_policy(
    config: Config, rollout: Rollout, tasks: Sequence[Task], *, on_finished: Callable[[Trajectory], None]
) -> Evaluation:
    """Evaluate the engine's current weights as the section `eval` says."""
    return await evaluate(
        rollout,
        tasks,
        sampling=SamplingParams(max_tokens=config.rollout.max_tokens, temperature=config.eval.temperature),
        num_samples=config.eval.samples,
        seed=mix_seed(config.trainer.seed, Stream.EVALUATION),
        on_finished=on_finished,
    )


class RunEvaluations:
    """Evaluates the policy of a run on its held-out tasks. Each step's evaluation is logged once, also by a run that
    was killed and resumed."""

    def __init__(
        self,
        *,
        config: Config,
        rollout: Rollout,
        tasks: Sequence[Task],
        folder: RunFolder | None,
        log: RunLog,
        console: RunConsole,
        progress: Progress,
        interruptible: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._config = config
        self._rollout = rollout
        self._tasks = tasks
        self._folder = folder
        self._log = log
        self._console = console
        self._progress = progress
        self._interruptible = interruptible
        self._logged_steps: set[int] = set()
        self._logged_before: Mapping[str, Any] | None = None

    def restore(self, logged: Sequence[Mapping[str, Any]]) -> None:
        """Take over which evaluations the metrics already hold."""
        evaluations = [line for line in logged if _is_evaluation(line)]
        self._logged_steps = {line["step"] for line in evaluations}
        self._logged_before = next((line for line in evaluations if line["step"] == 0), None)

    async def before(self) -> Baseline:
        """The evaluation before the first step; a resumed run reads the one it made."""
        if not self._tasks or not self._config.eval.before:
            return Baseline()
        logged = self._logged_before
        if logged is not None:
            return Baseline(metrics={name: value for name, value in logged.items() if name != "step"})
        if self._progress.step:
            return Baseline()
        evaluation = await self._evaluate("evaluating before training")
        self._report(evaluation, "before")
        self._console.info(f"before training: {evaluation.success:.1%} of {len(self._tasks)} held-out tasks solved")
        return Baseline(metrics=evaluation.metrics, trajectories=[t for group in evaluation.greedy for t in group])

    async def when_due(self) -> None:
        """The evaluation between steps, unless the metrics have it already."""
        step, every = self._progress.step, self._config.eval.every
        is_between = 0 < step < self._config.trainer.steps and step not in self._logged_steps
        if is_between and self._tasks and every > 0 and step % every == 0:
            self._report(await self._evaluate("evaluating"))

    async def after(self) -> Evaluation | None:
        """The evaluation after the last step; None without held-out tasks."""
        if not self._tasks:
            return None
        evaluation = await self._evaluate("evaluating after training")
        self._report(evaluation, "after")
        return evaluation

    async def _evaluate(self, title: str) -> Evaluation:
        num_rollouts = len(self._tasks) * (1 + self._config.eval.samples)
        with self._interruptible(), self._console.progress(title, num_rollouts) as bar:
            return await evaluate_policy(
                self._config, self._rollout, self._tasks, on_finished=lambda trajectory: bar.advance()
            )

    def _report(self, evaluation: Evaluation, name: str | None = None) -> None:
        """Log the metrics, and with a `name` write the greedy rollouts."""
        if self._progress.step not in self._logged_steps:
            self._logged_steps.add(self._progress.step)
            self._log.evaluation(evaluation.metrics)
        if name is not None and self._folder is not None:
            with self._log.tolerate_storage_errors("error/failed_records"):
                path = self._folder.eval_trajectories(name)
                write_trajectories(path, evaluation.greedy, policy_step=self._progress.step)
                record = record_of(evaluation, self._config, step=self._progress.step)
                write_evaluation(self._folder.evaluation(record.split, name), record)


def record_of(evaluation: Evaluation, config: Config, *, step: int, settings: Sequence[str] = ()) -> EvaluationRecord:
    """What a run folder keeps of an evaluation; `settings` are what it changes in the run's configuration."""
    return EvaluationRecord(
        split=config.eval.split, model=config.model.path, step=step, settings=tuple(settings), **evaluation.as_json()
    )


def settings_of(config: Config, split: str, overrides: Sequence[str]) -> tuple[Config, Sequence[str]]:
    """The configuration with which a finished run is evaluated on a split, and what it changes in the run's own."""
    eval_config = replace(config, eval=replace(config.eval, split=split, max_tasks=None))
    wrong = [text for text in overrides if not _is_evaluable(text.lstrip("+~").partition("=")[0])]
    if wrong:
        raise ConfigError(
            f"{', '.join(wrong)}: a run is evaluated with its own settings, except for {', '.join(_EVALUABLE)} "
            "(other than env.name). Choose rows with --split and other models or settings with the recipe: "
            "agent-r1 eval RECIPE --model RUN/hf"
        )
    changed = load_config(eval_config, overrides) if overrides else eval_config
    if takes_messages(changed):
        raise ConfigError(
            f"engine={changed.engine.name} evaluates the model of its server, not those of the run. Choose another "
            "engine, or evaluate the recipe: agent-r1 eval RECIPE engine=..."
        )
    return changed, changed_settings(eval_config, changed)


def _is_evaluable(key: str) -> bool:
    sections = tuple(entry.removesuffix("*") for entry in _EVALUABLE if entry.endswith(".*"))
    return key != "env.name" and (key in (*_EVALUABLE, "engine") or key.startswith(sections))


def _is_evaluation(line: Mapping[str, Any]) -> bool:
    return any(name.startswith(EVAL_PREFIX) for name in line)
