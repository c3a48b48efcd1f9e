"""Whole runs: training, evaluation, warm start. Checks first, then loads the models, then works."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

from agent_r1.config import Config
from agent_r1.console import RunConsole
from agent_r1.errors import ConfigError
from agent_r1.evaluation import Evaluation, sample_eval_tasks
from agent_r1.files import kept_working_folder
from agent_r1.interrupts import StopSignals, stop_signals
from agent_r1.learner.sharded import Ranks, open_ranks, refuse_ranks
from agent_r1.models import choose_device
from agent_r1.runs import (
    EvaluationPair,
    FolderLock,
    RunFolder,
    check_reads_outside,
    locked_run,
    open_run,
    open_trackers,
    read_evaluation,
    write_evaluation,
)
from agent_r1.training.checkpoints.disk_space import disk_space_warning
from agent_r1.training.checkpoints.resume import resume_run
from agent_r1.training.components import RunComponents, load_components, make_training_components
from agent_r1.training.evaluations import evaluate_policy, record_of, settings_of
from agent_r1.training.model_check import CheckedModel, check_model
from agent_r1.training.plan import RunPlan, check_learns, check_trainable
from agent_r1.training.prepare import ensure_model, expand_env, prepare_model, prepare_plan, prepare_run
from agent_r1.training.ranks import check_ranks, config_of_rank, engine_of_rank, is_coordinated, share_rollout
from agent_r1.training.reporting.summary import Summary
from agent_r1.training.sft import ensure_warm_start, tune
from agent_r1.training.trainer import Trainer


def train_run(config: Config, console: RunConsole) -> Summary:
    """Train from a configuration. A recipe's preparations run before there is an event loop: they may start their own,
    for example to play an environment, and Ctrl-C ends them."""
    check_trainable(config)
    with stop_signals(quiet=console.console.quiet) as stop, open_ranks(config) as ranks:
        console = console if ranks.is_first else RunConsole(quiet=True)
        ranks.attach(stop)
        plan = ranks.in_turn(lambda: _prepare(config, console, ranks))
        with locked_run(config) if ranks.is_first else nullcontext() as lock:
            plan = ranks.in_turn(lambda: ensure_model(plan, console))
            model = ranks.agree_now(lambda: check_model(plan))
            return asyncio.run(_train(plan, model, console, lock, stop, ranks))


def _prepare(config: Config, console: RunConsole, ranks: Ranks) -> RunPlan:
    check_ranks(config, ranks)
    plan = prepare_plan(config, console)
    check_learns(plan)
    check_reads_outside(config)
    choose_device(config.trainer.device)  # a machine without it is refused before an old run is moved aside
    return plan


async def _train(
    plan: RunPlan, model: CheckedModel, console: RunConsole, lock: FolderLock | None, stop: StopSignals, ranks: Ranks
) -> Summary:
    resumes = ranks.by_first(lambda: open_run(plan.config, say=console.info, lock=lock)[1])
    folder = RunFolder.of(plan.config, lock)
    rank_plan = replace(plan, config=config_of_rank(plan.config, ranks))
    engine = engine_of_rank(plan.config, ranks)
    components = ranks.agree_now(lambda: load_components(rank_plan, model, announce=console.info, engine=engine))
    rollout = share_rollout(components.rollout, ranks, only_first=is_coordinated(plan.config))
    components = replace(components, rollout=rollout)
    async with components.engine_open():
        return await _train_with(components, plan, console, folder, stop, ranks, resumes=resumes)


async def _train_with(
    components: RunComponents,
    plan: RunPlan,
    console: RunConsole,
    folder: RunFolder,
    stop: StopSignals,
    ranks: Ranks,
    *,
    resumes: bool,
) -> Summary:
    training = make_training_components(plan, components, ranks)
    shortage = disk_space_warning(plan.config, training.learner, folder)
    if shortage is not None:
        console.warn(shortage)
    checkpoint = resume_run(folder, training.learner, console.warn, ranks) if resumes else None

    def warn(message: str) -> None:
        console.warn(message)
        training.health.warnings.append(message)

    trackers = ranks.agree_now(lambda: open_trackers(plan.config, folder if ranks.is_first else None, warn))
    with stop.deferred(), trackers as tracker:
        trainer = Trainer(
            plan=plan,
            components=components,
            training=training,
            folder=folder,
            tracker=tracker,
            console=console,
            stop=stop,
            ranks=ranks,
        )
        async with AsyncExitStack() as stack:
            with stop.leaving("No step was made."), stop.cancelling():  # a cluster of workers may take long to start
                await stack.enter_async_context(components.episodes_open())
            return await trainer.run(resume=checkpoint)


def eval_run(config: Config, console: RunConsole) -> Evaluation:
    """Evaluate a model on the held-out rows (the training rows when there are none)."""
    refuse_ranks("eval")
    outcome = "An evaluation saves nothing before its end: run the same command again to start over."
    with stop_signals(quiet=console.console.quiet) as stop, stop.leaving(outcome):
        plan, model = prepare_run(config, console)
        return asyncio.run(_evaluate(plan, model, console, stop))


async def _evaluate(plan: RunPlan, model: CheckedModel, console: RunConsole, stop: StopSignals) -> Evaluation:
    config = plan.config
    components = load_components(plan, model, announce=console.info)
    tasks = sample_eval_tasks(plan.eval_tasks or plan.train_tasks, config.eval.max_tasks)
    with console.progress("evaluating", len(tasks) * (1 + config.eval.samples)) as bar:
        async with components.opened():
            with stop.cancelling(), kept_working_folder():
                return await evaluate_policy(
                    config, components.rollout, tasks, on_finished=lambda trajectory: bar.advance()
                )


def eval_trained(
    folder: RunFolder, split: str, console: RunConsole, *, overrides: Sequence[str] = (), again: bool = False
) -> EvaluationPair:
    """Evaluate the model that a run started from and the one that it trained, and record both in its folder.

    Evaluations with changed settings have records of their own. What is recorded already is not evaluated again, unless
    `again` says so.
    """
    if not folder.has_model:
        raise ConfigError(f"{folder.path} has no trained model in {folder.model.name}/; let the run finish first")
    own = folder.read_config()
    config, settings = settings_of(own, split, overrides)
    summary = folder.read_summary()
    steps = {"before": 0, "after": config.trainer.steps if summary is None else int(summary["steps"])}
    models = {"before": config.model.path, "after": str(folder.model)}
    files = {stage: folder.evaluation(split, stage, settings) for stage in models}
    if (
        config.eval.max_tasks is None
        and own.eval.max_tasks is not None
        and (again or not all(file.is_file() for file in files.values()))
    ):
        console.info(
            f"evaluating all rows of {split}: the run's eval.max_tasks={own.eval.max_tasks} is for the evaluations "
            "during training. Add eval.max_tasks=NUMBER to this command to evaluate fewer"
        )
    for stage, path in models.items():
        file = files[stage]
        if file.is_file() and not again:
            console.info(f"{stage} training: recorded in {file}")
            continue
        console.info(f"{stage} training: {path}")
        model = replace(config.model, path=path, prepare=config.model.prepare if stage == "before" else None)
        stage_config = replace(config, model=model, sft=replace(config.sft, folder=None))
        write_evaluation(
            file, record_of(eval_run(stage_config, console), stage_config, step=steps[stage], settings=settings)
        )
    before, after = (read_evaluation(file) for file in files.values())
    return before, after


def sft_run(config: Config, console: RunConsole) -> Path:
    """Tune `model.path` on `sft.data`; returns the folder of the tuned model. If `sft.folder` is set, the model is in
    there, and is made only when it is not there yet."""
    refuse_ranks("sft")
    with stop_signals(quiet=console.console.quiet):
        config = expand_env(config)
        prepare_plan(config, console)
        check_reads_outside(config)
        config = prepare_model(config, console)
        if config.sft.folder is not None:
            return Path(ensure_warm_start(config, console).model.path)
        with locked_run(config) as lock:
            return tune(config, console, lock)
