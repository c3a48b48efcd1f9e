"""Builds everything that a run works with, from its plan: the one place where parts of a run are constructed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from agent_r1.chat import ChatRenderer
from agent_r1.config import Config
from agent_r1.engines import Engine, MessageEngine, make_engine, takes_messages
from agent_r1.evaluation import HealthMonitor
from agent_r1.flows import AgentFlowBase, SingleStepFlow
from agent_r1.gateway import Gateway
from agent_r1.learner import CriticView, Learner, make_learner
from agent_r1.learner.packing import TRIE_ATTENTION
from agent_r1.learner.sharded import Ranks
from agent_r1.models import choose_device, load_policy
from agent_r1.rewards import ProcessBalance, RewardShaping
from agent_r1.rollout import Collector, Rollout
from agent_r1.tools import ToolRunner
from agent_r1.training.model_check import CheckedModel
from agent_r1.training.oom import explain_cuda_oom
from agent_r1.training.plan import RunPlan, tool_policies
from agent_r1.training.ranks import make_ranks_collector
from agent_r1.training.rollouts import make_remote_rollout, rollout_parts


@dataclass(frozen=True, kw_only=True, slots=True)
class RunComponents:
    """The policy and what runs episodes with it: all that evaluations and trial episodes need."""

    policy: nn.Module | None
    """The weights that are trained; None when the engine is behind a chat API."""
    renderer: ChatRenderer
    """Turns observations into prompts, and completions into actions."""
    engine: Engine
    """Samples from the policy."""
    rollout: Rollout
    """Runs episodes with the engine."""
    tools: ToolRunner
    """Runs the episodes' tool calls."""
    gateway: Gateway
    """Serves the users' own agents, for episodes of the flow `gateway`."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Inside, episodes can run; at the end the engine is closed and what serves episodes is stopped."""
        async with self.engine_open(), self.episodes_open():
            yield

    @asynccontextmanager
    async def episodes_open(self) -> AsyncIterator[None]:
        """At the end of this block the processes behind tools and the gateway, and rollout workers, are stopped."""
        async with self.tools, self.gateway, self.rollout.opened():
            yield

    @asynccontextmanager
    async def engine_open(self) -> AsyncIterator[None]:
        """At the end of this block the engine is closed, also after an error."""
        try:
            if isinstance(self.engine, MessageEngine):
                await self.engine.check()
            yield
        finally:
            await self.engine.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingComponents:
    """What the training loop works with besides `RunComponents`."""

    learner: Learner
    """Turns experience into updates."""
    shaping: RewardShaping
    """Puts the parts of the reward together."""
    collector: Collector
    """Rolls out the groups of each step."""
    critic_view: CriticView
    """What the critic reads of each step."""
    health: HealthMonitor
    """Warns when learning goes wrong."""


def load_components(
    plan: RunPlan,
    model: CheckedModel,
    *,
    announce: Callable[[str], None] = lambda line: None,
    engine: Callable[[Config, Any, int], Engine] = make_engine,
) -> RunComponents:
    """Load the policy, where it is not behind a chat API, and start an engine for it, which `engine` makes. `announce`
    gets the address of a gateway that programs outside this process connect to, and what happens to rollout workers."""
    config = plan.config
    torch.manual_seed(config.trainer.seed)
    with explain_cuda_oom(config, loads=True):
        policy = None if takes_messages(config) else load_run_policy(config)
        made_engine = engine(config, policy, model.context_length)
    if choose_device(config.trainer.device).type != "cpu" or not made_engine.pauses_during_update:
        # The engine computes elsewhere: the event loop should not wait for the tokenizer either.
        model.renderer.encode_in_threads()
    sees_images = takes_messages(config) or model.renderer.sees_images
    tools = ToolRunner(tool_policies(config), seed=config.trainer.seed, sees_images=sees_images)
    gateway = Gateway(config.agent, announce=announce)
    if config.rollout.workers != "local":
        rollout: Rollout = make_remote_rollout(plan, model.renderer, made_engine, tools, gateway, announce=announce)
    else:
        rollout = make_rollout(plan, model.renderer, made_engine, tools, gateway)
    return RunComponents(
        policy=policy, renderer=model.renderer, engine=made_engine, rollout=rollout, tools=tools, gateway=gateway
    )


def load_run_policy(config: Config) -> nn.Module:
    """The model that a run starts from, with the attention that trains on token tries."""
    return load_policy(
        config.model.path,
        dtype=config.model.dtype,
        device=choose_device(config.trainer.device),
        attention=TRIE_ATTENTION,
        trust_remote_code=config.model.trust_remote_code,
    )


def make_rollout(plan: RunPlan, renderer: ChatRenderer, engine: Engine, tools: ToolRunner, gateway: Gateway) -> Rollout:
    """What runs episodes with an engine in this process, within the limits of the configuration."""
    return Rollout(engine=engine, renderer=renderer, **rollout_parts(plan.config, plan.reward, tools, gateway))


def make_training_components(
    plan: RunPlan, components: RunComponents, ranks: Ranks | None = None
) -> TrainingComponents:
    """What trains the policy. The engine must exist already: the learner may add adapters to the policy."""
    config = plan.config
    assert components.policy is not None  # `check_trainable`
    shaping = make_shaping(config)
    with explain_cuda_oom(config, loads=True):
        learner = make_learner(config, components.policy, plan.algorithm, ranks)
    return TrainingComponents(
        learner=learner,
        shaping=shaping,
        collector=make_ranks_collector(config, components.rollout, plan.train_tasks, shaping, ranks or Ranks()),
        critic_view=CriticView(
            config.algorithm.critic.privileged,
            components.renderer.encode,
            max_tokens=config.trainer.micro_batch_tokens,
        ),
        health=HealthMonitor(has_tools=_offers_tools(plan)),
    )


def make_shaping(config: Config) -> RewardShaping:
    """How the parts of the reward are put together; process returns are discounted as the estimator discounts."""
    process = ProcessBalance(
        weight=config.reward.process_weight,
        normalisation=config.algorithm.process.normalisation,
        gamma=config.algorithm.gamma,
        bound=config.algorithm.process.bound,
    )
    return RewardShaping(
        process=process,
        max_tokens=config.rollout.max_tokens,
        overlong_fraction=config.algorithm.overlong_fraction,
        bootstrap=config.algorithm.critic.bootstrap,
    )


def _offers_tools(plan: RunPlan) -> bool:
    """Whether some episode has tools to call: the environment's or its row's."""
    by_default = bool(plan.config.env.get("tools"))
    return any(
        (by_default or task.env_kwargs.get("tools"))
        and AgentFlowBase.registry.get(task.agent_name) is not SingleStepFlow
        for task in plan.train_tasks
    )
