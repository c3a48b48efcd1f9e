"""The training loop: roll out, learn, push weights, log, save; evaluate before and after.

It knows no algorithm: the learner is given experience, the engine weights, and everything else is bookkeeping. All that
is random is a function of the seed and the step, so a checkpoint is weights, optimizer state and a few counters.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch

from agent_r1.chat import ChatRenderer
from agent_r1.config import Config, algorithm_name, to_yaml
from agent_r1.console import RunConsole, pick_pair
from agent_r1.engines import Engine
from agent_r1.errors import AgentR1Error, ExportError, StorageError
from agent_r1.evaluation import Evaluation, HealthMonitor, evaluate, rollout_metrics, sample_eval_tasks
from agent_r1.files import write_atomically
from agent_r1.flows import AgentFlowBase, SingleStepFlow
from agent_r1.interrupts import RunInterrupted, StopSignals
from agent_r1.learner import CriticView, Learner, gather_experience
from agent_r1.models import Rounding, export_policy, merged_weights
from agent_r1.rewards import ProcessBalance, RewardShaping
from agent_r1.rollout import Rollout, make_collector
from agent_r1.runs import RunFolder, Tracker, base_model, write_fingerprints, write_trajectories
from agent_r1.seeds import mix_seed
from agent_r1.training.checkpoints.files import Checkpoint
from agent_r1.training.checkpoints.last_step import LastStep
from agent_r1.training.oom import explain_cuda_oom
from agent_r1.training.plan import RunPlan
from agent_r1.training.weight_growth import WeightGrowth
from agent_r1.types import Group, SamplingParams, Trajectory

EVAL_STREAM = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What a finished run came to; written as `summary.json`."""

    success_before: float | None
    """Held-out tasks solved greedily before training; None without held-out rows."""
    success_after: float | None
    """The same after training."""
    train_seconds: float
    """Wall time of the training steps, evaluation not included, over all resumes."""
    steps: int
    """Training steps."""
    tool_calls_per_episode: float
    """In the evaluation after training, else in the last batch."""
    model: str | None
    """The exported Hugging Face folder; None when it could not be exported."""
    export_rounding: float | None
    """What rounding for the export changed, as a share of what training changed; None when nothing was rounded."""
    base_model: str
    """The model it started from; a warm start counts as the model it was made of."""
    algorithm: str
    """The preset, with what was changed in it."""
    seed: int
    """The run's seed."""
    peak_gpu_gb: float | None
    """The most GPU memory that the process held; None on a CPU."""
    metrics: dict[str, float]
    """The evaluation after training, else the last step's metrics."""
    metrics_before: dict[str, float]
    """The evaluation before training; empty when there was none."""
    warnings: list[str]
    """What went wrong on the way, in words."""


class Trainer:
    """One run."""

    def __init__(
        self,
        *,
        plan: RunPlan,
        folder: RunFolder,
        renderer: ChatRenderer,
        engine: Engine,
        rollout: Rollout,
        learner: Learner,
        tracker: Tracker,
        console: RunConsole,
        stop: StopSignals | None = None,
    ) -> None:
        self.config: Config = plan.config
        self.folder = folder
        self.renderer = renderer
        self.engine = engine
        self.rollout = rollout
        self.learner = learner
        self.tracker = tracker
        self.console = console
        self.stop = stop or StopSignals()
        self.eval_tasks = sample_eval_tasks(plan.eval_tasks, self.config.eval.max_tasks)
        self.shaping = make_shaping(self.config)
        self.collector = make_collector(self.config, rollout, plan.train_tasks, self.shaping)
        self.critic_view = CriticView(
            self.config.algorithm.critic.privileged,
            renderer.encode,
            max_tokens=self.config.trainer.micro_batch_tokens,
        )
        self.health = HealthMonitor(has_tools=_offers_tools(plan))
        self._last_step = LastStep(self.config, folder, learner, self.shaping.process, self.collector)
        self._progress = self._last_step.progress
        self._evaluated: set[int] = set()
        self._growth = WeightGrowth(learner.policy)
        self._rounding: Rounding | None = None

    async def run(self, *, resume: Checkpoint | None) -> Summary:
        """Train to the last step; with `resume`, from a checkpoint that the learner has loaded.

        Whatever ends the run early leaves a checkpoint of its last finished step: an error, and a signal, which raises
        `RunInterrupted`. What cannot be written and cannot be done without, and a model that cannot be exported, is an
        error that says what is kept.
        """
        with self.stop.deferred():
            try:
                return await self._run(resume)
            except (Exception, SystemExit, RunInterrupted) as error:
                self._last_step.save_if_missing(self.console, is_error=not isinstance(error, RunInterrupted))
                if isinstance(error, RunInterrupted):
                    raise self.stop.interruption(self._last_step.outcome()) from None
                if isinstance(error, StorageError | ExportError):
                    raise type(error)(f"{error}. {self._last_step.outcome()}") from error
                raise
            finally:
                await self.collector.close()

    async def _run(self, resume: Checkpoint | None) -> Summary:
        logged = self.folder.read_metrics()
        if resume is not None:
            self._load(resume, logged)
        self._evaluated = {line["step"] for line in logged if _is_evaluation(line)}
        await self._push_weights()
        before = await self._evaluate_before()
        metrics = self._last_metrics(logged)
        total = self.config.trainer.steps
        await self._evaluate_when_due()  # a run that was killed between a checkpoint and its evaluation
        with self.console.progress("training", total, done=self._progress.step, in_logs=False) as bar:
            while self._progress.step < total:
                self.stop.check()
                metrics = await self._step()
                bar.advance(f"reward {metrics['reward/outcome']:.3f}")
                if self._due(self.config.trainer.save_every) or self._progress.step == total:
                    with self.rollout.clock_stopped():
                        self._save()
                await self._evaluate_when_due()
        await self.collector.close()
        self.stop.check()
        return await self._finish(before, metrics)

    def _interruptible(self) -> AbstractContextManager[None]:
        """Inside, a signal saves the last finished step, then cancels the rollouts: they may take long to stop."""
        return self.stop.cancelling(lambda: self._last_step.save_if_missing(self.console, is_error=False))

    # --- one step --------------------------------------------------------------------------------------------------

    async def _step(self) -> dict[str, float]:
        started = time.perf_counter()
        step = self._progress.step
        with self._interruptible(), self.console.progress("rollout", self.collector.rollouts_per_batch) as bar:
            collected = await self.collector.collect(step, on_finished=lambda trajectory: bar.advance())
        groups = collected.groups
        rolled_out = time.perf_counter()
        self.folder.ensure_owned()
        experience = gather_experience(groups, self.shaping, self.critic_view)
        with self._paused_clock(), explain_cuda_oom(self.config):
            learned = self.learner.learn(experience, step=step)
        self._check_growth()
        updated = time.perf_counter()
        self._progress.step += 1
        self._last_step.note()
        await self._push_weights()
        self._record(groups)
        finished = time.perf_counter()
        self._progress.train_seconds += finished - started
        metrics = {
            **rollout_metrics(groups),
            **collected.metrics,
            **learned,
            "time/rollout": rolled_out - started,
            "time/update": updated - rolled_out,
            "time/step": finished - started,
            "perf/tokens_per_second": sum(t.num_action_tokens for g in groups for t in g) / (rolled_out - started),
            "perf/trained_tokens": float(sum(map(len, experience.samples))),
        }
        peak = _peak_gpu_gb(self.learner.device)
        if peak is not None:
            metrics["perf/peak_gpu_gb"] = peak
        self.tracker.log(self._progress.step, metrics)
        self.console.step_line(self._progress.step, self.config.trainer.steps, metrics, finished - started)
        for warning in self.health.observe(metrics):
            self.console.warn(warning)
        return metrics

    def _paused_clock(self) -> AbstractContextManager[None]:
        """Stops the deadlines of episodes in which nothing is sampled during an update."""
        return self.rollout.clock_stopped() if self.engine.pauses_during_update else nullcontext()

    def _due(self, every: int) -> bool:
        return every > 0 and self._progress.step % every == 0

    async def _push_weights(self) -> None:
        weights = merged_weights(self.learner.policy, apart=self.engine.adapters)
        await self.engine.update_weights(weights, self._progress.step)

    def _record(self, groups: Sequence[Group]) -> None:
        if self._due(self.config.tracking.record_every):
            path = self.folder.trajectories / f"{self._progress.step}.jsonl"
            with self._tolerate_storage_errors("error/failed_records"):
                write_trajectories(path, groups, policy_step=self._progress.step - 1)

    # --- evaluation ------------------------------------------------------------------------------------------------

    async def _evaluate(self, title: str) -> Evaluation:
        settings = self.config.eval
        sampling = SamplingParams(max_tokens=self.config.rollout.max_tokens, temperature=settings.temperature)
        num_rollouts = len(self.eval_tasks) * (1 + settings.samples)
        with self._interruptible(), self.console.progress(title, num_rollouts) as bar:
            return await evaluate(
                self.rollout,
                self.eval_tasks,
                sampling=sampling,
                num_samples=settings.samples,
                seed=mix_seed(self.config.trainer.seed, EVAL_STREAM),
                on_finished=lambda trajectory: bar.advance(),
            )

    async def _evaluate_before(self) -> tuple[Mapping[str, float] | None, list[Trajectory]]:
        """The evaluation before the first step; a resumed run reads the one it made."""
        if not self.eval_tasks or not self.config.eval.before:
            return None, []
        logged = [line for line in self.folder.read_metrics() if line["step"] == 0 and _is_evaluation(line)]
        if logged:
            return {name: value for name, value in logged[0].items() if name != "step"}, []
        if self._progress.step:
            return None, []
        evaluation = await self._evaluate("evaluating before training")
        self._log_evaluation(evaluation.metrics)
        self._write_evaluation("before", evaluation)
        self.console.info(f"before training: {evaluation.success:.1%} of {len(self.eval_tasks)} held-out tasks solved")
        return evaluation.metrics, [trajectory for group in evaluation.greedy for trajectory in group]

    async def _evaluate_when_due(self) -> None:
        """The evaluation in the middle of a run, unless it is in the metrics already."""
        step = self._progress.step
        is_between = 0 < step < self.config.trainer.steps and step not in self._evaluated
        if is_between and self.eval_tasks and self._due(self.config.eval.every):
            self._log_evaluation((await self._evaluate("evaluating")).metrics)

    def _log_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Each step's evaluation is logged once, also when a run was killed before it could write its summary."""
        if self._progress.step in self._evaluated:
            return
        self._evaluated.add(self._progress.step)
        self.tracker.log(self._progress.step, metrics)
        for warning in self.health.observe_evaluation(metrics):
            self.console.warn(warning)

    def _write_evaluation(self, name: str, evaluation: Evaluation) -> None:
        path = self.folder.trajectories / f"eval_{name}.jsonl"
        with self._tolerate_storage_errors("error/failed_records"):
            write_trajectories(path, evaluation.greedy, policy_step=self._progress.step)

    async def _finish(
        self, before: tuple[Mapping[str, float] | None, list[Trajectory]], metrics: Mapping[str, float]
    ) -> Summary:
        """Export, evaluate, report. A model that cannot be exported costs nothing else: the evaluation is made and the
        summary written, and then its error ends the run. What could not be written is tried again before that."""
        failure = self._export()
        metrics_before, trajectories_before = before
        final = dict(metrics)
        tool_calls = final.get("episode/tool_calls", 0.0)
        success_after: float | None = None
        if self.eval_tasks:
            after = await self._evaluate("evaluating after training")
            self._log_evaluation(after.metrics)
            self._write_evaluation("after", after)
            final, success_after = after.metrics, after.success
            tool_calls = after.metrics["eval/all/tool_calls"]
            self.console.before_after(metrics_before, after.metrics)
            pair = pick_pair(trajectories_before, [trajectory for group in after.greedy for trajectory in group])
            for title, trajectory in zip(("before training", "after training"), pair or (), strict=False):
                self.console.trajectory(f"{title}: {trajectory.task_id}", trajectory)
        if isinstance(failure, StorageError):
            failure = self._export()
        if failure is not None:
            self.health.warnings.append(f"step {self._progress.step}: {failure}")
        summary = Summary(
            success_before=None if metrics_before is None else metrics_before.get("eval/all/greedy"),
            success_after=success_after,
            train_seconds=round(self._progress.train_seconds, 1),
            steps=self._progress.step,
            tool_calls_per_episode=tool_calls,
            model=str(self.folder.model) if failure is None else None,
            export_rounding=None if self._rounding is None else self._rounding.share,
            base_model=base_model(self.config.model.path),
            algorithm=algorithm_name(self.config),
            seed=self.config.trainer.seed,
            peak_gpu_gb=_peak_gpu_gb(self.learner.device),
            metrics=final,
            metrics_before=dict(metrics_before or {}),
            warnings=self.health.warnings,
        )
        write_atomically(self.folder.summary, json.dumps(asdict(summary), indent=2) + "\n")
        if failure is not None:
            self.console.info(f"summary: {self.folder.summary}")
            raise failure
        if self._rounding is not None:
            self.console.info(str(self._rounding))
        self.console.info(f"model: {self.folder.model}   summary: {self.folder.summary}")
        return summary

    # --- saving ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _tolerate_storage_errors(self, metric: str, advice: str = "") -> Iterator[None]:
        """Inside, a file that cannot be written is said and counted, and the run goes on without it."""
        try:
            yield
        except StorageError as error:
            message = f"{error}. The run goes on without it{advice}"
            self.console.warn(message)
            self.health.warnings.append(f"step {self._progress.step}: {message}")
            self.tracker.log(self._progress.step, {metric: 1.0})

    def _export(self) -> AgentR1Error | None:
        """Write the model; gives the error when that fails."""
        settings = self.config.rollout
        sampling = SamplingParams(temperature=settings.temperature, top_p=settings.top_p, top_k=settings.top_k)
        try:
            self._check_growth()
            self._rounding = export_policy(
                self.learner.policy, self.renderer.tokenizer, self.folder.model, self.config, sampling=sampling
            )
        except AgentR1Error as error:
            return error
        return None

    def _check_growth(self) -> None:
        self._growth.check(**{"optimizer.learning_rate": self.config.optimizer.learning_rate})

    def _save(self) -> None:
        keep = self.config.trainer.keep_checkpoints
        advice = f"; less room is needed with a smaller trainer.keep_checkpoints (it is {keep})" if keep > 1 else ""
        with self._tolerate_storage_errors("error/failed_checkpoints", advice):
            self._last_step.save()

    def _load(self, checkpoint: Checkpoint, logged: Sequence[Mapping[str, Any]]) -> None:
        """Take over what the learner does not hold."""
        self.shaping.process.load_state_dict(checkpoint.state["process_balance"])
        # Checkpoints from before groups could outlive a step have no entry: batch after batch was trained.
        started = {"pending": [], "next": checkpoint.step * self.config.rollout.groups_per_step}
        self.collector.load_state_dict(checkpoint.state.get("collector", started))
        self.health.replay(logged)
        self._progress.step = checkpoint.step
        self._progress.train_seconds = float(checkpoint.state["train_seconds"])
        self._last_step.note()
        write_atomically(self.folder.config, to_yaml(self.config))
        if not self.folder.fingerprints.exists():
            write_fingerprints(self.folder, self.config)
        self.console.info(f"resuming from step {checkpoint.step} of {self.folder.path}")

    def _last_metrics(self, logged: Sequence[Mapping[str, Any]]) -> Mapping[str, float]:
        """Those of the step that a resumed run resumes from."""
        lines = [line for line in logged if line["step"] == self._progress.step and "time/step" in line]
        return {name: value for name, value in lines[-1].items() if name != "step"} if lines else {}


def _is_evaluation(line: Mapping[str, Any]) -> bool:
    return any(name.startswith("eval/") for name in line)


def _peak_gpu_gb(device: torch.device) -> float | None:
    return torch.cuda.max_memory_reserved(device) / 1e9 if device.type == "cuda" else None


def make_shaping(config: Config) -> RewardShaping:
    """How the parts of the reward are put together; process returns are discounted as the estimator discounts."""
    process = ProcessBalance(
        weight=config.reward.process_weight,
        normalisation=config.algorithm.process.normalisation,
        gamma=float(config.algorithm.estimator.get("gamma", 1.0)),
        bound=config.algorithm.process.bound,
    )
    return RewardShaping(
        process=process,
        max_tokens=config.rollout.max_tokens,
        overlong_fraction=config.algorithm.overlong_fraction,
        bootstrap=config.algorithm.critic.bootstrap,
    )


def _offers_tools(plan: RunPlan) -> bool:
    """Some episode has tools to call: the environment's or its row's."""
    by_default = bool(plan.config.env.get("tools"))
    return any(
        (by_default or task.env_kwargs.get("tools"))
        and AgentFlowBase.registry.get(task.agent_name) is not SingleStepFlow
        for task in plan.train_tasks
    )
