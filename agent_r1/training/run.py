"""Whole runs: check everything, load the models, train or evaluate or warm-start."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from agent_r1.chat import ChatRenderer
from agent_r1.config import Config, to_yaml
from agent_r1.console import RunConsole
from agent_r1.demonstrations import load_demonstrations
from agent_r1.engines.local import LocalEngine
from agent_r1.errors import ConfigError
from agent_r1.evaluation import Evaluation, evaluate
from agent_r1.rewards import in_workers
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.seeds import mix_seed
from agent_r1.tools import ToolRunner, tool_runner
from agent_r1.tools.mcp import close_servers
from agent_r1.tracking import JsonlTracker, TensorBoardTracker, Tracker, Trackers, WandbTracker
from agent_r1.training.checkpoint import list_checkpoints
from agent_r1.training.compute import make_compute
from agent_r1.training.credit import Models
from agent_r1.training.learner import Learner
from agent_r1.training.lora import add_adapters
from agent_r1.training.models import (
    Critic,
    SharedCritic,
    checkpoint_layers,
    choose_device,
    compile_layers,
    export_model,
    load_policy,
)
from agent_r1.training.preflight import Plan, check_model, context_length, make_plan, prepare, tool_policies
from agent_r1.training.run_folder import RunFolder, open_run
from agent_r1.training.scoring import AnyCritic
from agent_r1.training.trainer import EVAL_STREAM, Summary, Trainer
from agent_r1.training.warm_start import fit_demonstrations
from agent_r1.types import SamplingParams


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """The models of a run and what runs episodes with them."""

    policy: nn.Module
    """The weights that are trained."""
    engine: LocalEngine
    """Samples from its own copy of them."""
    rollout: Rollout
    """Runs episodes with the engine."""
    tools: ToolRunner
    """Runs the episodes' tool calls."""
    device: torch.device
    """Where all of it is."""


def train_run(config: Config, console: RunConsole) -> Summary:
    """Train from a configuration. A recipe's preparations run before there is an event loop: they may have their own,
    to play an environment for instance, and Ctrl-C ends them."""
    plan, renderer = _checked(config, console)
    return asyncio.run(_train(plan, renderer, console))


async def _train(plan: Plan, renderer: ChatRenderer, console: RunConsole) -> Summary:
    config = plan.config
    folder, resume = open_run(config)
    if resume:
        folder.rewind(list_checkpoints(folder.checkpoints)[-1][0])
    parts = load_parts(plan, renderer)
    models = _models(config, parts)
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
    tracker = _trackers(config, folder)
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
        )
        async with tools_at_hand(parts.tools):
            return await trainer.run(resume=resume)
    finally:
        tracker.close()
        await parts.engine.close()


@asynccontextmanager
async def tools_at_hand(runner: ToolRunner) -> AsyncIterator[None]:
    """Within this block tools run with `runner`; at its end the processes behind them are gone."""
    try:
        async with tool_runner(runner):
            yield
    finally:
        await asyncio.to_thread(close_servers)


def eval_run(config: Config, console: RunConsole) -> Evaluation:
    """Evaluate a model on the held-out rows (the training rows when there are none)."""
    plan, renderer = _checked(config, console)
    return asyncio.run(_evaluate(plan, renderer, console))


async def _evaluate(plan: Plan, renderer: ChatRenderer, console: RunConsole) -> Evaluation:
    config = plan.config
    parts = load_parts(plan, renderer)
    tasks = (plan.eval_tasks or plan.train_tasks)[: config.eval.max_tasks]
    with console.progress("evaluating", len(tasks) * (1 + config.eval.samples)) as bar:
        async with tools_at_hand(parts.tools):
            evaluation = await evaluate(
                parts.rollout,
                tasks,
                sampling=SamplingParams(max_tokens=config.rollout.max_tokens, temperature=config.eval.temperature),
                num_samples=config.eval.samples,
                seed=mix_seed(config.trainer.seed, EVAL_STREAM),
                on_finished=lambda trajectory: bar.advance(),
            )
    await parts.engine.close()
    return evaluation


def sft_run(config: Config, console: RunConsole) -> Path:
    """Warm-start `model.path` on `sft.data`; gives the folder of the tuned model."""
    plan = make_plan(config)
    renderer = check_model(plan)
    if not config.sft.data:
        raise ConfigError("sft.data is empty; give one or more .jsonl or .parquet files of demonstrations")
    conversations = load_demonstrations(config.sft.data, renderer)
    folder, _ = open_run(config)
    device = choose_device(config.trainer.device)
    policy = load_policy(
        config.model.path, dtype=config.model.dtype, device=device, trust_remote_code=config.model.trust_remote_code
    )
    if config.model.lora.rank:
        add_adapters(policy, config.model.lora, seed=config.trainer.seed)
    tracker = _trackers(config, folder)
    settings = config.sft
    with console.progress("warm start", settings.steps) as bar:

        def note(step: int, loss: float) -> None:
            tracker.log(step + 1, {"loss/sft": loss})
            bar.advance(f"loss {loss:.3f}")
            if (step + 1) % max(1, settings.steps // 5) == 0:
                console.say(f"warm start: step {step + 1}/{settings.steps}  loss {loss:.3f}")

        fit_demonstrations(
            policy,
            conversations,
            steps=settings.steps,
            batch_size=settings.batch_size,
            learning_rate=settings.learning_rate,
            optimizer=config.optimizer,
            compute=replace(make_compute(config, policy), temperature=1.0),
            seed=config.trainer.seed,
            on_step=note,
        )
    tracker.close()
    export_model(policy, renderer.tokenizer, folder.model)
    return folder.model


def dry_run(config: Config, console: RunConsole) -> Plan:
    """Check configuration, data and names, print the resolved configuration, load no model."""
    plan = make_plan(config)
    if config.model.prepare is not None and not Path(config.model.path).exists():
        model_note = f"will be made by {config.model.prepare}"
    else:
        check_model(plan)
        model_note = "found; every first prompt fits its context"
    console.say(to_yaml(config).rstrip())
    console.say(f"train: {len(plan.train_tasks)} tasks   eval: {len(plan.eval_tasks)} tasks   model: {model_note}")
    return plan


def _models(config: Config, parts: Parts) -> Models:
    """The policy with the models its algorithm asks for; a coefficient of 0 asks for no reference.

    Adapters come last: a critic of its own is a whole model, copied before them. A policy that has them is its own
    reference.
    """
    settings = config.algorithm
    critic: AnyCritic | None = None
    if settings.critic.enabled:
        critic = SharedCritic(parts.policy) if settings.critic.shared_weight is not None else Critic(parts.policy)
    reference: nn.Module | None = None
    if config.model.lora.rank:
        add_adapters(parts.policy, config.model.lora, seed=config.trainer.seed)
        reference = parts.policy if settings.kl.coefficient else None
    elif settings.kl.coefficient:
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


def _checked(config: Config, console: RunConsole) -> tuple[Plan, ChatRenderer]:
    """The plan of a run and its model's renderer, after the recipe has prepared what was missing."""
    plan = make_plan(config)
    prepare_model(config, console)
    return plan, check_model(plan)


def prepare_model(config: Config, console: RunConsole) -> None:
    """Make the model, when it is not there and the configuration says how."""
    if config.model.prepare is not None and not Path(config.model.path).exists():
        console.say(f"{config.model.path} is not there yet: making it with {config.model.prepare}")
        prepare(config.model.prepare, "model preparation", config)


def load_parts(plan: Plan, renderer: ChatRenderer) -> Parts:
    """Load the policy and start an engine on a copy of it."""
    config = plan.config
    torch.manual_seed(config.trainer.seed)
    device = choose_device(config.trainer.device)
    policy = load_policy(
        config.model.path, dtype=config.model.dtype, device=device, trust_remote_code=config.model.trust_remote_code
    )
    engine = make_engine(config, policy)
    limits = RolloutLimits(
        max_steps=config.rollout.max_steps,
        concurrency=config.rollout.concurrency,
        deadline_seconds=config.rollout.deadline_seconds,
        retries=config.rollout.retries,
    )
    tools = ToolRunner(tool_policies(config), seed=config.trainer.seed)
    reward = plan.reward
    if config.reward.timeout is not None:
        reward = in_workers(reward, tools.workers, timeout=config.reward.timeout)
    rollout = Rollout(engine=engine, renderer=renderer, reward=reward, make_env=plan.make_env, limits=limits)
    return Parts(policy=policy, engine=engine, rollout=rollout, tools=tools, device=device)


def make_engine(config: Config, policy: nn.Module) -> LocalEngine:
    """The engine of a run, with its own copy of the policy."""
    settings = config.engine
    on_gpu = next(policy.parameters()).is_cuda
    dtype = {"auto": "bfloat16" if on_gpu else config.model.dtype}.get(settings.dtype, settings.dtype)
    return LocalEngine(
        policy,
        max_requests=config.rollout.concurrency,
        context_length=context_length(config),
        prefill_tokens=settings.prefill_tokens,
        kv_memory=settings.kv_memory,
        dtype=getattr(torch, dtype),
        compile_layers=settings.compile,
    )


def _trackers(config: Config, folder: RunFolder) -> Trackers:
    trackers: list[Tracker] = [JsonlTracker(folder.metrics)]
    if config.tracking.tensorboard:
        trackers.append(TensorBoardTracker(folder.tensorboard))
    if config.tracking.wandb_project is not None:
        settings: dict[str, Any] = {"config": to_yaml(config)}
        trackers.append(WandbTracker(config.tracking.wandb_project, config.run.name, settings))
    return Trackers(trackers)
