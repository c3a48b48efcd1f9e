"""The training loop: roll out, learn, push weights, log, save; evaluate before and after.

It knows no algorithm: the learner is given experience, the engine weights, and everything else is bookkeeping. All that
is random is a function of the seed and the step, so a checkpoint is weights, optimizer state and a few counters.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

import torch

from agent_r1.chat import ChatRenderer
from agent_r1.config import Config, algorithm_name, to_yaml
from agent_r1.console import RunConsole, pick_pair
from agent_r1.engines.base import Engine
from agent_r1.errors import RolloutsFailingError, StorageError
from agent_r1.evaluation import Evaluation, choose_panel, evaluate
from agent_r1.flows import AgentFlowBase, SingleStepFlow
from agent_r1.health import HealthMonitor
from agent_r1.metrics import rollout_metrics
from agent_r1.rewards import ProcessBalance, RewardShaping
from agent_r1.rollout import Rollout, write_atomically, write_trajectories
from agent_r1.seeds import mix_seed
from agent_r1.tracking import Tracker
from agent_r1.training.batch import CriticView, gather_experience
from agent_r1.training.checkpoint import list_checkpoints, load_latest, save_checkpoint
from agent_r1.training.device_memory import shortage_explained
from agent_r1.training.learner import Learner
from agent_r1.training.lora import merged_weights
from agent_r1.training.models import export_model
from agent_r1.training.overlap import make_collector
from agent_r1.training.preflight import Plan
from agent_r1.training.run_folder import RunFolder, base_model
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
    model: str
    """The exported Hugging Face folder."""
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


@dataclass
class _Progress:
    """What the loop carries from step to step."""

    step: int = 0
    train_seconds: float = 0.0


class Trainer:
    """One run."""

    def __init__(
        self,
        *,
        plan: Plan,
        folder: RunFolder,
        renderer: ChatRenderer,
        engine: Engine,
        rollout: Rollout,
        learner: Learner,
        tracker: Tracker,
        console: RunConsole,
    ) -> None:
        self.config: Config = plan.config
        self.folder = folder
        self.renderer = renderer
        self.engine = engine
        self.rollout = rollout
        self.learner = learner
        self.tracker = tracker
        self.console = console
        self.eval_tasks = choose_panel(plan.eval_tasks, self.config.eval.max_tasks)
        self.shaping = make_shaping(self.config)
        self.collector = make_collector(self.config, rollout, plan.train_tasks, self.shaping)
        self.critic_view = CriticView(
            self.config.algorithm.critic.privileged,
            renderer.encode,
            max_tokens=self.config.trainer.micro_batch_tokens,
        )
        self.health = HealthMonitor(has_tools=_offers_tools(plan))
        self._progress = _Progress()

    async def run(self, *, resume: bool) -> Summary:
        """Train to the last step; with `resume`, from the newest checkpoint. What cannot be written and cannot be done
        without is a `StorageError` that says what is kept."""
        try:
            return await self._run(resume=resume)
        except StorageError as error:
            saved = self._last_saved()
            kept = (
                f"The last checkpoint is that of step {saved}: the same command goes on from there"
                if saved
                else "There is no checkpoint: the same command starts afresh"
            )
            raise StorageError(f"{error}. {kept}") from error

    async def _run(self, *, resume: bool) -> Summary:
        if resume:
            self._load()
        await self._push_weights()
        before = await self._evaluate_before()
        metrics: Mapping[str, float] = {}
        total = self.config.trainer.steps
        try:
            with self.console.progress("training", total, done=self._progress.step, in_logs=False) as bar:
                while self._progress.step < total:
                    metrics = await self._step()
                    bar.advance(f"reward {metrics['reward/outcome']:.3f}")
                    if self._due(self.config.trainer.save_every) or self._progress.step == total:
                        with self.rollout.clock_stopped():
                            self._save()
                    if self._due(self.config.eval.every) and self._progress.step < total and self.eval_tasks:
                        self._log_evaluation((await self._evaluate("evaluating")).metrics)
        except RolloutsFailingError:
            if self._progress.step:  # nothing that was learned is lost: the same command goes on from here
                self._save()
            raise
        except StorageError:
            if self._progress.step > self._last_saved():  # others may have left some room by now
                with suppress(StorageError):
                    self._write_checkpoint()
            raise
        finally:
            await self.collector.close()
        return await self._finish(before, metrics)

    # --- one step --------------------------------------------------------------------------------------------------

    async def _step(self) -> dict[str, float]:
        started = time.perf_counter()
        step = self._progress.step
        with self.console.progress("rollout", self.collector.rollouts_per_batch) as bar:
            collected = await self.collector.collect(step, on_finished=lambda trajectory: bar.advance())
        groups = collected.groups
        rolled_out = time.perf_counter()
        experience = gather_experience(groups, self.shaping, self.critic_view)
        with self.rollout.clock_stopped(), shortage_explained(self.config):
            learned = self.learner.learn(experience, step=step)
        updated = time.perf_counter()
        self._progress.step += 1
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
        for warning in self.health.look(metrics):
            self.console.warn(warning)
        return metrics

    def _due(self, every: int) -> bool:
        return every > 0 and self._progress.step % every == 0

    async def _push_weights(self) -> None:
        await self.engine.update_weights(merged_weights(self.learner.policy), self._progress.step)

    def _record(self, groups: Sequence[Group]) -> None:
        if self._due(self.config.tracking.record_every):
            path = self.folder.trajectories / f"{self._progress.step}.jsonl"
            with self._spared("error/failed_records"):
                write_trajectories(path, groups, policy_step=self._progress.step - 1)

    # --- evaluation ------------------------------------------------------------------------------------------------

    async def _evaluate(self, title: str) -> Evaluation:
        settings = self.config.eval
        sampling = SamplingParams(max_tokens=self.config.rollout.max_tokens, temperature=settings.temperature)
        num_rollouts = len(self.eval_tasks) * (1 + settings.samples)
        with self.console.progress(title, num_rollouts) as bar:
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
        logged = [line for line in self.folder.read_metrics() if line["step"] == 0]
        if logged:
            return {name: value for name, value in logged[0].items() if name != "step"}, []
        evaluation = await self._evaluate("evaluating before training")
        self._log_evaluation(evaluation.metrics)
        self._write_evaluation("before", evaluation)
        self.console.say(f"before training: {evaluation.success:.1%} of {len(self.eval_tasks)} held-out tasks solved")
        return evaluation.metrics, [trajectory for group in evaluation.greedy for trajectory in group]

    def _log_evaluation(self, metrics: Mapping[str, float]) -> None:
        self.tracker.log(self._progress.step, metrics)
        for warning in self.health.look_at_evaluation(metrics):
            self.console.warn(warning)

    def _write_evaluation(self, name: str, evaluation: Evaluation) -> None:
        path = self.folder.trajectories / f"eval_{name}.jsonl"
        with self._spared("error/failed_records"):
            write_trajectories(path, evaluation.greedy, policy_step=self._progress.step)

    async def _finish(
        self, before: tuple[Mapping[str, float] | None, list[Trajectory]], metrics: Mapping[str, float]
    ) -> Summary:
        """Export, evaluate, report. A model that cannot be written is tried again after the evaluation, which is not
        lost with it."""
        exported = False
        with suppress(StorageError):
            self._export()
            exported = True
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
        if not exported:
            self._export()
        summary = Summary(
            success_before=None if metrics_before is None else metrics_before.get("eval/all/greedy"),
            success_after=success_after,
            train_seconds=round(self._progress.train_seconds, 1),
            steps=self._progress.step,
            tool_calls_per_episode=tool_calls,
            model=str(self.folder.model),
            base_model=base_model(self.config.model.path),
            algorithm=algorithm_name(self.config),
            seed=self.config.trainer.seed,
            peak_gpu_gb=_peak_gpu_gb(self.learner.device),
            metrics=final,
            metrics_before=dict(metrics_before or {}),
            warnings=self.health.warnings,
        )
        write_atomically(self.folder.summary, json.dumps(asdict(summary), indent=2) + "\n")
        self.console.say(f"model: {self.folder.model}   summary: {self.folder.summary}")
        return summary

    # --- saving ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _spared(self, metric: str, advice: str = "") -> Iterator[None]:
        """Inside, a file that cannot be written is said and counted, and the run goes on without it."""
        try:
            yield
        except StorageError as error:
            message = f"{error}. The run goes on without it{advice}"
            self.console.warn(message)
            self.health.warnings.append(f"step {self._progress.step}: {message}")
            self.tracker.log(self._progress.step, {metric: 1.0})

    def _export(self) -> None:
        export_model(self.learner.policy, self.renderer.tokenizer, self.folder.model)

    def _save(self) -> None:
        keep = self.config.trainer.keep_checkpoints
        advice = f"; less room is needed with a smaller trainer.keep_checkpoints (it is {keep})" if keep > 1 else ""
        with self._spared("error/failed_checkpoints", advice):
            self._write_checkpoint()

    def _last_saved(self) -> int:
        """The step of the newest checkpoint; 0 when there is none."""
        return max((step for step, _ in list_checkpoints(self.folder.checkpoints)), default=0)

    def _write_checkpoint(self) -> None:
        state: dict[str, Any] = {
            "learner": self.learner.state_dict(),
            "process_balance": self.shaping.process.state_dict(),
            "collector": self.collector.state_dict(self._progress.step),
            "train_seconds": self._progress.train_seconds,
        }
        save_checkpoint(
            self.folder.checkpoints,
            step=self._progress.step,
            state=state,
            keep=self.config.trainer.keep_checkpoints,
        )

    def _load(self) -> None:
        checkpoint = load_latest(self.folder.checkpoints, self.learner.device)
        if checkpoint is None:
            return
        self.learner.load_state_dict(checkpoint.state["learner"])
        self.shaping.process.load_state_dict(checkpoint.state["process_balance"])
        # Checkpoints from before groups could outlive a step have no entry: batch after batch was trained.
        started = {"pending": [], "next": checkpoint.step * self.config.rollout.groups_per_step}
        self.collector.load_state_dict(checkpoint.state.get("collector", started))
        self.health.replay(self.folder.read_metrics())
        self._progress = _Progress(step=checkpoint.step, train_seconds=float(checkpoint.state["train_seconds"]))
        write_atomically(self.folder.config, to_yaml(self.config))
        self.console.say(f"going on from step {checkpoint.step} of {self.folder.path}")


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
    )


def _offers_tools(plan: Plan) -> bool:
    """Some episode has tools to call: the environment's or its row's."""
    by_default = bool(plan.config.env.get("tools"))
    return any(
        (by_default or task.env_kwargs.get("tools"))
        and AgentFlowBase.registry.get(task.agent_name) is not SingleStepFlow
        for task in plan.train_tasks
    )
