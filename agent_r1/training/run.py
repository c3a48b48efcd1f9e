"""Whole runs: check everything, load the models, train or evaluate."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from agent_r1.algorithms import Algorithm
from agent_r1.chat import ChatRenderer
from agent_r1.config import Config, to_yaml
from agent_r1.console import RunConsole
from agent_r1.engines import Engine, make_engine
from agent_r1.envs import make_env
from agent_r1.evaluation import Evaluation, evaluate, sample_eval_tasks
from agent_r1.interrupts import StopSignals, stop_signals
from agent_r1.learner import Critic, Learner, Models, make_compute, make_critic
from agent_r1.learner.packing import TRIE_ATTENTION
from agent_r1.models import (
    add_adapters,
    checkpoint_layers,
    choose_device,
    compile_layers,
    is_gguf,
    load_policy,
    train_in_float32,
)
from agent_r1.rewards import in_workers
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.runs import FolderLock, RunFolder, check_reads_outside, locked_run, open_run, open_trackers, plan_opening
from agent_r1.seeds import mix_seed
from agent_r1.tools import ToolRunner
from agent_r1.training.checkpoints.resume import resume_run
from agent_r1.training.disk_space import disk_space_warning
from agent_r1.training.plan import RunPlan, check_model, context_length, make_plan, prepare_model, tool_policies
from agent_r1.training.sft import ensure_warm_start, started_config
from agent_r1.training.trainer import EVAL_STREAM, Summary, Trainer
from agent_r1.types import SamplingParams


@dataclass(frozen=True, kw_only=True, slots=True)
class RunComponents:
    """The models of a run and what runs episodes with them."""

    policy: nn.Module
    """The weights that are trained."""
    renderer: ChatRenderer
    """Turns observations into its prompts."""
    engine: Engine
    """Samples from the policy."""
    rollout: Rollout
    """Runs episodes with the engine."""
    tools: ToolRunner
    """Runs the episodes' tool calls."""
    device: torch.device
    """Where all of it is."""


def train_run(config: Config, console: RunConsole) -> Summary:
    """Train from a configuration. A recipe's preparations run before there is an event loop: they may have their own,
    to play an environment for instance, and Ctrl-C ends them."""
    with stop_signals(quiet=console.console.quiet) as stop:
        plan = make_plan(config)
        check_reads_outside(config)
        with locked_run(config) as lock:
            plan = ensure_model(plan, console)
            return asyncio.run(_train(plan, check_model(plan), console, lock, stop))


async def _train(
    plan: RunPlan, renderer: ChatRenderer, console: RunConsole, lock: FolderLock, stop: StopSignals
) -> Summary:
    config = plan.config
    folder, resumes = open_run(config, say=console.info, lock=lock)
    parts = load_parts(plan, renderer)
    async with closing_engine(parts):
        return await _train_with(parts, plan, renderer, console, folder, stop, resumes=resumes)


async def _train_with(
    parts: RunComponents,
    plan: RunPlan,
    renderer: ChatRenderer,
    console: RunConsole,
    folder: RunFolder,
    stop: StopSignals,
    *,
    resumes: bool,
) -> Summary:
    config = plan.config
    models = _models(config, plan.algorithm, parts)
    if config.trainer.compile:
        for decoder in _decoders(models):
            compile_layers(decoder)
    if config.trainer.gradient_checkpointing:
        checkpoint_layers(models.policy)
        if isinstance(models.critic, Critic):
            checkpoint_layers(models.critic.trunk)
    learner = Learner(
        models=models,
        algorithm=plan.algorithm,
        optimizer=config.optimizer,
        max_skipped_updates=config.trainer.max_skipped_updates,
        total_steps=config.trainer.steps,
        seed=config.trainer.seed,
    )
    shortage = disk_space_warning(config, learner, folder)
    if shortage is not None:
        console.warn(shortage)
    checkpoint = resume_run(folder, learner, console.warn) if resumes else None
    tracker = open_trackers(config, folder)
    with stop.deferred():
        try:
            trainer = Trainer(
                plan=plan,
                folder=folder,
                renderer=renderer,
                engine=parts.engine,
                rollout=parts.rollout,
                learner=learner,
                tracker=tracker,
                console=console,
                stop=stop,
            )
            async with parts.tools:
                return await trainer.run(resume=checkpoint)
        finally:
            tracker.close()


@asynccontextmanager
async def closing_engine(parts: RunComponents) -> AsyncIterator[None]:
    """Within this block the engine works; at its end, however that comes, it is closed."""
    try:
        yield
    finally:
        await parts.engine.close()


def eval_run(config: Config, console: RunConsole) -> Evaluation:
    """Evaluate a model on the held-out rows (the training rows when there are none)."""
    outcome = "An evaluation saves nothing before its end: run the same command again to start over."
    with stop_signals(quiet=console.console.quiet) as stop, stop.leaving(outcome):
        plan, renderer = prepare_run(config, console)
        return asyncio.run(_evaluate(plan, renderer, console, stop))


async def _evaluate(plan: RunPlan, renderer: ChatRenderer, console: RunConsole, stop: StopSignals) -> Evaluation:
    config = plan.config
    parts = load_parts(plan, renderer)
    tasks = sample_eval_tasks(plan.eval_tasks or plan.train_tasks, config.eval.max_tasks)
    with console.progress("evaluating", len(tasks) * (1 + config.eval.samples)) as bar:
        async with closing_engine(parts), parts.tools:
            with stop.cancelling():
                return await evaluate(
                    parts.rollout,
                    tasks,
                    sampling=SamplingParams(max_tokens=config.rollout.max_tokens, temperature=config.eval.temperature),
                    num_samples=config.eval.samples,
                    seed=mix_seed(config.trainer.seed, EVAL_STREAM),
                    on_finished=lambda trajectory: bar.advance(),
                )


def dry_run(config: Config, console: RunConsole) -> RunPlan:
    """Check configuration, data and names, print the resolved configuration, load no model."""
    plan = make_plan(config)
    check_reads_outside(config)
    if config.model.prepare is not None and not Path(config.model.path).exists():
        model_note = f"will be made by {config.model.prepare}"
    elif is_gguf(config.model.path):
        model_note = "a GGUF file, which a run converts"
    else:
        check_model(plan)
        model_note = "found; every first prompt fits its context"
    if config.sft.folder is not None:
        model_note += f", warm-started in {config.sft.folder}"
    console.info(to_yaml(config).rstrip())
    if not is_gguf(config.model.path):
        opening = plan_opening(started_config(config))
        if opening.story:
            console.info(opening.story)
    console.info(f"train: {len(plan.train_tasks)} tasks   eval: {len(plan.eval_tasks)} tasks   model: {model_note}")
    return plan


def _models(config: Config, algorithm: Algorithm, parts: RunComponents) -> Models:
    """The policy with the models its algorithm asks for; a coefficient of 0 asks for no reference.

    Adapters come last: a critic of its own is a whole model, copied before them. A policy that has them is its own
    reference.
    """
    settings = config.algorithm
    critic = (
        make_critic(parts.policy, settings.critic, within_steps=algorithm.values_within_steps)
        if settings.critic.enabled
        else None
    )
    reference: nn.Module | None = None
    if config.model.lora.rank:
        add_adapters(parts.policy, config.model.lora, seed=config.trainer.seed)
        reference = parts.policy if settings.kl.coefficient else None
    elif settings.kl.coefficient:
        train_in_float32(parts.policy)  # before it is copied: at the start both must say the same
        reference = copy.deepcopy(parts.policy).eval().requires_grad_(False)
    return Models(
        policy=parts.policy,
        reference=reference,
        critic=critic,
        compute=make_compute(config, parts.policy),
    )


def _decoders(models: Models) -> list[nn.Module]:
    """The decoders of a run's models, each once: a shared critic or a policy that is its own reference adds none."""
    own: list[nn.Module] = [cast(Any, models.policy).get_decoder()]
    if models.reference is not None and models.reference is not models.policy:
        own.append(cast(Any, models.reference).get_decoder())
    if isinstance(models.critic, Critic):
        own.append(models.critic.trunk)
    return own


def prepare_run(config: Config, console: RunConsole) -> tuple[RunPlan, ChatRenderer]:
    """The plan of a run and its model's renderer, after the recipe has prepared what was missing."""
    plan = ensure_model(make_plan(config), console)
    return plan, check_model(plan)


def ensure_model(plan: RunPlan, console: RunConsole) -> RunPlan:
    """The plan, with the model that its run starts from there: made, and warm-started, where the recipe says so."""
    return replace(plan, config=ensure_warm_start(prepare_model(plan.config, console), console))


def load_parts(plan: RunPlan, renderer: ChatRenderer) -> RunComponents:
    """Load the policy and start an engine on a copy of it."""
    config = plan.config
    torch.manual_seed(config.trainer.seed)
    device = choose_device(config.trainer.device)
    policy = load_policy(
        config.model.path,
        dtype=config.model.dtype,
        device=device,
        attention=TRIE_ATTENTION,
        trust_remote_code=config.model.trust_remote_code,
    )
    engine = make_engine(config, policy, context_length(config))
    tools = ToolRunner(tool_policies(config), seed=config.trainer.seed)
    rollout = make_rollout(plan, renderer, engine, tools)
    return RunComponents(policy=policy, renderer=renderer, engine=engine, rollout=rollout, tools=tools, device=device)


def make_rollout(plan: RunPlan, renderer: ChatRenderer, engine: Engine, tools: ToolRunner) -> Rollout:
    """What runs episodes with an engine, within the limits of the configuration."""
    config, reward = plan.config, plan.reward
    limits = RolloutLimits(
        max_steps=config.rollout.max_steps,
        concurrency=config.rollout.concurrency,
        deadline_seconds=config.rollout.deadline_seconds,
        retries=config.rollout.retries,
    )
    if config.reward.timeout is not None:
        reward = in_workers(reward, tools.workers, timeout=config.reward.timeout)
    return Rollout(
        engine=engine,
        renderer=renderer,
        reward=reward,
        make_env=partial(make_env, section=config.env, runner=tools),
        limits=limits,
        tool_runner=tools,
    )
