"""The training loop: roll out, learn, push weights, log, save; evaluate before and after.

It knows no algorithm: the learner receives experience, the engine receives weights, and the rest is bookkeeping.
Everything random is a function of the seed and the step, so a checkpoint holds weights, optimizer state and a few
counters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

from agent_r1.config import Config, algorithm_name, to_yaml
from agent_r1.console import RunConsole, pick_pair
from agent_r1.engines import engine_metrics
from agent_r1.errors import AgentR1Error, ConfigError, ExportError, RankError, StorageError
from agent_r1.evaluation import Evaluation, rollout_metrics, sample_eval_tasks
from agent_r1.files import kept_working_folder, write_atomically
from agent_r1.interrupts import RunInterrupted, StopSignals
from agent_r1.learner import gather_experience
from agent_r1.learner.sharded import Ranks, alike
from agent_r1.metric_names import EVAL_GREEDY, EVAL_TOOL_CALLS, PEAK_GPU_GB, STEP_SECONDS, TOOL_CALLS
from agent_r1.models import Rounding, changed_torch_defaults
from agent_r1.runs import PendingTrajectories, RunFolder, Tracker, base_model, write_credit, write_fingerprints
from agent_r1.training.checkpoints.files import Checkpoint
from agent_r1.training.checkpoints.last_step import LastStep
from agent_r1.training.components import RunComponents, TrainingComponents
from agent_r1.training.evaluations import Baseline, RunEvaluations
from agent_r1.training.oom import explain_cuda_oom
from agent_r1.training.plan import RunPlan
from agent_r1.training.reporting.profile import StepProfile, profiled_part
from agent_r1.training.reporting.run_log import RunLog
from agent_r1.training.reporting.step_times import StepTimes
from agent_r1.training.reporting.summary import Summary
from agent_r1.types import Group, SamplingParams, TrajectoryCredit


class Trainer:
    """The training loop of one run."""

    def __init__(
        self,
        *,
        plan: RunPlan,
        components: RunComponents,
        training: TrainingComponents,
        folder: RunFolder,
        tracker: Tracker,
        console: RunConsole,
        stop: StopSignals,
        ranks: Ranks | None = None,
    ) -> None:
        self.config: Config = plan.config
        self.tokenizer = components.renderer.tokenizer
        self.engine = components.engine
        self.rollout = components.rollout
        self.learner = training.learner
        self.shaping = training.shaping
        self.collector = training.collector
        self.critic_view = training.critic_view
        self.health = training.health
        self.folder = folder
        self.console = console
        self.stop = stop
        self._ranks = ranks or Ranks()
        self._last_step = LastStep(self.config, folder, self.learner, self.shaping.process, self.collector, self._ranks)
        self._progress = self._last_step.progress
        own_folder = folder if self._ranks.is_first else None
        self._log = RunLog(
            tracker=tracker, console=console, health=self.health, progress=self._progress, folder=own_folder
        )
        self._evaluations = RunEvaluations(
            config=self.config,
            rollout=self.rollout,
            tasks=sample_eval_tasks(plan.eval_tasks, self.config.eval.max_tasks),
            folder=own_folder,
            log=self._log,
            console=console,
            progress=self._progress,
            interruptible=self._interruptible,
        )
        self._rounding: Rounding | None = None

    async def run(self, *, resume: Checkpoint | None) -> Summary:
        """Train to the last step; with `resume`, from a checkpoint that the learner has loaded.

        A run that ends early leaves a checkpoint of its last finished step, whether an error or a signal ended it (a
        signal raises `RunInterrupted`), unless it writes none (`trainer.keep_checkpoints=0`). When an essential file
        cannot be written or the model cannot be exported, the error says what is kept.
        """
        self._ranks.on_exit(outcome=self._last_step.outcome, release=self.folder.release)
        with self.stop.deferred():
            try:
                return await self._run(resume)
            except (Exception, SystemExit, RunInterrupted) as error:
                if self._ranks.agreed(error):
                    self._last_step.save_if_missing(self.console, is_error=not isinstance(error, RunInterrupted))
                if isinstance(error, RunInterrupted):
                    raise alike(self.stop.interruption(self._last_step.outcome()), error) from None
                if isinstance(error, StorageError | ExportError | RankError):
                    raise alike(type(error)(f"{error}. {self._last_step.outcome()}"), error) from error
                raise
            finally:
                await self.collector.close()

    async def _run(self, resume: Checkpoint | None) -> Summary:
        logged = self._ranks.by_first(self.folder.read_metrics)
        if resume is not None:
            self._load(resume, logged)
        if not self._last_step.may_save:
            self.console.info(
                "trainer.keep_checkpoints=0: this run writes no checkpoints, and its steps are lost when it is "
                "interrupted or fails"
            )
        self._evaluations.restore(logged)
        await self._push_weights()
        before = await self._evaluations.before()
        metrics = self._last_metrics(logged)
        total = self.config.trainer.steps
        await self._evaluations.when_due()  # a run that was killed between a checkpoint and its evaluation
        with self.console.progress("training", total, done=self._progress.step, in_logs=False) as bar:
            while self._progress.step < total:
                await self._ranks.check(self.stop)
                with self._profile_if_due():
                    metrics = await self._step()
                bar.advance(f"reward {metrics['reward/outcome']:.3f}")
                if self._saves_this_step():
                    with self.rollout.clock_stopped():
                        self._save()
                await self._evaluations.when_due()
        await self.collector.close()
        await self._ranks.check(self.stop)
        return await self._finish(before, metrics)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Inside, where foreign code runs, a signal saves the last finished step, then cancels the rollouts: they may
        take long to stop. Several ranks save it together, when all have stopped."""
        with kept_working_folder() as restore:

            def save() -> None:
                restore()
                self._last_step.save_if_missing(self.console, is_error=False)

            with self.stop.cancelling(save) if self._ranks.size == 1 else self.stop.cancelling():
                yield

    # --- one step --------------------------------------------------------------------------------------------------

    async def _step(self) -> dict[str, float]:
        times, step = StepTimes(), self._progress.step
        progress = self.console.progress("rollout", self.collector.rollouts_per_batch)
        with profiled_part("rollout"), self._interruptible(), progress as bar:
            collected = await self.collector.collect(step, on_finished=lambda trajectory: bar.advance())
        groups = collected.groups
        rollout_seconds = times.ended("rollout")
        self._ranks.agree_now(self._check_before_update)
        experience = gather_experience(groups, self.shaping, self.critic_view)
        credit: list[TrajectoryCredit] | None = [] if self._records_credit(step + 1) else None
        with self._recording(groups) as record:
            async with self.engine.paused():
                async with self._ranks.collective(f"the update of step {step + 1}"):
                    with profiled_part("update"), self._paused_clock(), explain_cuda_oom(self.config):
                        learned = await self.learner.learn(
                            experience, step=step, on_credit=None if credit is None else credit.extend
                        )
                    self.learner.check_growth()
                times.ended("update")
                self._progress.step += 1
                self._last_step.note()
                with profiled_part("weight update"):
                    await self._push_weights()
            times.ended("weight_sync")
            if record is not None:
                self._publish(record, credit)
        seconds = times.metrics()
        others = {
            **collected.metrics,
            **learned,
            **engine_metrics(self.engine),
            **seconds,
            "perf/tokens_per_second": sum(t.num_action_tokens for g in groups for t in g) / rollout_seconds,
            "perf/trained_tokens": float(sum(map(len, experience.samples))),
        }
        peak = self.learner.memory()
        if peak is not None:
            others[PEAK_GPU_GB] = peak
        metrics = {**rollout_metrics(groups, others), **others}
        self._progress.train_seconds += metrics[STEP_SECONDS]
        self._log.step(metrics, num_steps=self.config.trainer.steps, seconds=metrics[STEP_SECONDS])
        return metrics

    @contextmanager
    def _profile_if_due(self) -> Iterator[None]:
        """Inside, the step that begins is profiled, if it is the one to be profiled."""
        step = self._progress.step + 1
        if step != self.config.tracking.profile_step or not self._ranks.is_first:
            yield
            return
        with StepProfile() as profile:
            yield
        with self._log.tolerate_storage_errors("error/failed_profiles"):
            self.console.info(profile.write(self.folder.profile, step))

    def _paused_clock(self) -> AbstractContextManager[None]:
        """Stops the deadlines of episodes in which nothing is sampled during an update."""
        return self.rollout.clock_stopped() if self.engine.pauses_during_update else nullcontext()

    def _saves_this_step(self) -> bool:
        step, settings = self._progress.step, self.config.trainer
        return self._last_step.may_save and (step == settings.steps or _is_due(step, settings.save_every))

    def _records_credit(self, step: int) -> bool:
        tracking = self.config.tracking
        return tracking.record_credit and _is_due(step, tracking.record_every)

    async def _push_weights(self) -> None:
        """Give the engine the learner's weights; ranks gather them together, and wait for each other."""

        async def push() -> None:
            weights = self.learner.weights(unmerged=self.engine.adapters)
            try:
                await self.engine.update_weights(weights, self._progress.step)
            finally:
                for _ in weights if self._ranks.size > 1 else ():  # an engine that failed must not stop the others
                    pass

        await self._ranks.gather(push)

    def _recording(self, groups: Sequence[Group]) -> AbstractContextManager[PendingTrajectories | None]:
        """The rollouts of the step that begins, recorded during its update; None when they are not recorded."""
        step = self._progress.step
        if not (_is_due(step + 1, self.config.tracking.record_every) and self._ranks.is_first):
            return nullcontext()
        return PendingTrajectories(groups, policy_step=step, path=self.folder.step_trajectories(step + 1))

    def _publish(self, record: PendingTrajectories, credit: Sequence[TrajectoryCredit] | None) -> None:
        """Put the rollouts of the step in their place, their credit first: whoever finds the rollouts finds it too.
        They were written during the update; whoever finds the step's metrics finds them."""
        with self._log.tolerate_storage_errors("error/failed_records"):
            if credit is not None:
                write_credit(self.folder.step_credit(self._progress.step), credit)
            record.publish()

    # --- the end ---------------------------------------------------------------------------------------------------

    async def _finish(self, before: Baseline, last_step: Mapping[str, float]) -> Summary:
        """Export, evaluate, report. When the model cannot be exported, the evaluation is still made and the summary
        written, and then the error ends the run. What could not be written is tried once more before that."""
        failure = self._export()
        after = await self._evaluations.after()
        if after is not None:
            self.console.before_after(before.metrics, after.metrics)
            pair = pick_pair(before.trajectories, [trajectory for group in after.greedy for trajectory in group])
            for title, trajectory in zip(("before training", "after training"), pair or (), strict=False):
                self.console.trajectory(f"{title}: {trajectory.task_id}", trajectory)
        if isinstance(failure, StorageError):
            failure = self._export()
        if failure is not None:
            self._log.keep_warning(str(failure))
        summary = self._summary(before, after, last_step, is_exported=failure is None)
        self._ranks.by_first(lambda: self.folder.write_summary(asdict(summary)))
        if failure is not None:
            self.console.info(f"summary: {self.folder.summary}")
            raise failure
        if self._rounding is not None:
            self.console.info(str(self._rounding))
        self.console.info(f"model: {self.folder.model}   summary: {self.folder.summary}")
        return summary

    def _summary(
        self, before: Baseline, after: Evaluation | None, last_step: Mapping[str, float], *, is_exported: bool
    ) -> Summary:
        tool_calls = last_step.get(TOOL_CALLS, 0.0) if after is None else after.metrics[EVAL_TOOL_CALLS]
        return Summary(
            success_before=None if before.metrics is None else before.metrics.get(EVAL_GREEDY),
            success_after=None if after is None else after.success,
            train_seconds=round(self._progress.train_seconds, 1),
            steps=self._progress.step,
            tool_calls_per_episode=tool_calls,
            model=str(self.folder.model) if is_exported else None,
            export_rounding=None if self._rounding is None else self._rounding.share,
            base_model=base_model(self.config.model.path),
            algorithm=algorithm_name(self.config),
            seed=self.config.trainer.seed,
            peak_gpu_gb=self.learner.memory(),
            metrics=dict(last_step) if after is None else after.metrics,
            metrics_before=dict(before.metrics or {}),
            warnings=self._log.warnings,
        )

    # --- saving ----------------------------------------------------------------------------------------------------

    def _export(self) -> AgentR1Error | None:
        """Write the model; returns the error if that fails."""
        settings = self.config.rollout
        sampling = SamplingParams(temperature=settings.temperature, top_p=settings.top_p, top_k=settings.top_k)
        try:
            self.learner.check_growth()
            self._rounding = self.learner.export(
                self.folder.model, tokenizer=self.tokenizer, config=self.config, sampling=sampling
            )
        except AgentR1Error as error:
            return error
        return None

    def _check_before_update(self) -> None:
        """Raise on one rank for all: the others would wait for it in the update."""
        self.folder.ensure_in_place()
        if (changed := changed_torch_defaults()) is not None:
            raise ConfigError(f"the rollouts of step {self._progress.step + 1} cannot be learned from: {changed}")

    def _save(self) -> None:
        self._ranks.agree_now(self.folder.ensure_in_place)
        keep = self.config.trainer.keep_checkpoints
        advice = f"; less room is needed with a smaller trainer.keep_checkpoints (it is {keep})" if keep > 1 else ""
        with self._log.tolerate_storage_errors("error/failed_checkpoints", advice):
            self._last_step.save()

    def _load(self, checkpoint: Checkpoint, logged: Sequence[Mapping[str, Any]]) -> None:
        """Restore what the learner does not hold."""
        self.shaping.process.load_state_dict(checkpoint.state["process_balance"])
        self.collector.load_state_dict(checkpoint.state["collector"])
        self.health.replay(logged)
        self._progress.step = checkpoint.step
        self._progress.train_seconds = float(checkpoint.state["train_seconds"])
        self._last_step.note()
        self._ranks.by_first(self._write_config)
        self.console.info(f"resuming from step {checkpoint.step} of {self.folder.path}")

    def _write_config(self) -> None:
        write_atomically(self.folder.config, to_yaml(self.config))
        if not self.folder.fingerprints.exists():
            write_fingerprints(self.folder, self.config)

    def _last_metrics(self, logged: Sequence[Mapping[str, Any]]) -> Mapping[str, float]:
        """The metrics of the step that a resumed run starts from."""
        lines = [line for line in logged if line["step"] == self._progress.step and STEP_SECONDS in line]
        return {name: value for name, value in lines[-1].items() if name != "step"} if lines else {}


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
