"""`load_agent`: a trained agent, ready to run episodes exactly as in training.

    agent = load_agent("runs/quickstart")
    async with agent.opened():
        trajectory = await agent.play(agent.tasks()[0], observer=print)

The flow, the environment, the tools, the renderer, the limits and the reward are those of the run; what the observer
sees is in `agent_r1/flows/events.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from agent_r1.chat import ChatRenderer, generation_sampling, server_renderer
from agent_r1.config import Config, Overrides, override_texts
from agent_r1.data import load_tasks, read_rows
from agent_r1.engines import Engine, MessageEngine, make_engine, takes_messages
from agent_r1.engines.openai import make_openai_engine
from agent_r1.envs import AgentEnv, make_env
from agent_r1.errors import DataError, no_exit
from agent_r1.flows import FlowObserver, Turn
from agent_r1.inference.source import AgentSource, Say, find_source, recipe_of, unpacked
from agent_r1.models import choose_device, load_policy, load_trained, merge_trained
from agent_r1.registry import recipe_folder
from agent_r1.rewards import RewardFunction, in_workers, no_outcome_reward
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.tools import ToolRunner
from agent_r1.training import (
    check_config,
    check_model_exists,
    context_length_of,
    load_checkpoint,
    renderer_of,
    tool_policies,
)
from agent_r1.types import Message, SamplingParams, Task, Trajectory


@dataclass(kw_only=True)
class Agent:
    """A model with the tools, environment, reward and limits of its recipe."""

    source: AgentSource
    """The run or the model that the agent comes from."""
    renderer: ChatRenderer
    """Its chat template, tokenizer and tool-call format."""
    engine: Engine
    """Samples from the model."""
    rollout: Rollout
    """Runs episodes."""
    reward: RewardFunction
    """The recipe's outcome reward."""
    tools: ToolRunner
    """Runs the calls."""
    sampling: SamplingParams
    """How it samples unless told otherwise: as in training."""
    _tasks: list[Task] | None = field(default=None, repr=False)

    @property
    def config(self) -> Config:
        """The configuration of the agent."""
        return self.source.config

    @property
    def flow(self) -> str:
        """The flow of what a user asks: the recipe's, or one model call where there are no tools."""
        has_env = self.config.env.get("name", "tool") != "tool" or bool(self.config.env.get("tools"))
        return self.config.data.agent_name if has_env else "single_step"

    @property
    def tells_tokens(self) -> bool:
        """Whether the token ids of its turns are known; a server behind a chat API tells none."""
        return not isinstance(self.engine, MessageEngine)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Agent]:
        """Inside, episodes can run; at the end the engine is closed and the processes behind tools are stopped."""
        try:
            async with self.tools:
                yield self
        finally:
            await self.engine.close()

    async def play(
        self,
        task: Task,
        *,
        observer: FlowObserver | None = None,
        sampling: SamplingParams | None = None,
        seed: int = 0,
        continues: Turn | None = None,
        env: AgentEnv | None = None,
        scored: bool = True,
    ) -> Trajectory:
        """One episode. A failure is a trajectory that says why (`is_failure`, `error`).

        `continues` is the last turn of the conversation that the task continues, and `env` an environment that
        outlives the episode. Without `scored` the reward function is not called, for questions without ground truth.
        """
        with no_exit("the code of the recipe"), recipe_folder(self._folder):
            return await self.rollout.play(
                task,
                sampling=sampling or self.sampling,
                seed=seed,
                observer=observer,
                continues=continues,
                make_env=None if env is None else (lambda _: env),
                reward=self.reward if scored else no_outcome_reward,
            )

    def make_env(self, task: Task) -> AgentEnv:
        """A new environment for a task."""
        with recipe_folder(self._folder):
            return self.rollout.make_env(task)

    def question(self, messages: Sequence[Message]) -> Task:
        """A task with these messages, without ground truth."""
        return Task(task_id="chat", prompt=tuple(messages), agent_name=self.flow)

    def tasks(self) -> list[Task]:
        """The recipe's held-out tasks, else its training tasks. Raises `DataError` when their files are missing."""
        if self._tasks is None:
            self._tasks = load_tasks(self._data_files(), default_agent=self.config.data.agent_name)
        return self._tasks

    def _data_files(self) -> list[str]:
        data = self.config.data
        files = list(data.eval or data.train)
        missing = [file for file in files if not Path(file).is_file()]
        if not files:
            raise DataError("there are no tasks: name a run, or a recipe with data (--recipe FOLDER)")
        if missing:
            recipe = self.config.recipe or "RECIPE"
            makes = f"; agent-r1 train {recipe} --dry-run makes them" if data.prepare else ""
            raise DataError(f"the data files {', '.join(missing)} are not here{makes}")
        return files

    def system_message(self) -> str | None:
        """The system message of the recipe's first row, which the model was trained with; None when there is none."""
        prompt = self._first_row().get("prompt")
        first = prompt[0] if isinstance(prompt, list) and prompt else None
        if not isinstance(first, dict) or first.get("role") != "system":
            return None
        return str(first.get("content"))

    @property
    def has_worlds(self) -> bool:
        """Whether the recipe's rows have facts of their own (`env_kwargs`), which its tools or environment may need."""
        return bool(self._first_row().get("env_kwargs"))

    def _first_row(self) -> dict[str, Any]:
        """The first row of the recipe's data; empty when there is none."""
        try:
            row = next(read_rows(Path(self._data_files()[0])), None)
        except DataError:
            return {}
        return row if isinstance(row, dict) else {}

    @property
    def _folder(self) -> Path | None:
        return recipe_of(self.source)


def load_agent(
    model_or_run: str | Path,
    *,
    recipe: str | Path | None = None,
    overrides: Overrides = (),
    step: int | None = None,
    say: Say = lambda text: None,
) -> Agent:
    """Load an agent for inference.

    Args:
        model_or_run: The folder of a run; or a Hugging Face folder or id, or a GGUF file.
        recipe: A recipe folder with the tools, environment and reward for a model; for a run, instead of its own.
        overrides: Changes of the settings, such as `["rollout.temperature=0.7"]`.
        step: The step of a run's checkpoint to load; by default the exported model, else the newest checkpoint.
        say: Told what takes long.
    """
    source = find_source(model_or_run, recipe=recipe, overrides=overrides, step=step)
    config = source.config
    with no_exit("the code of the recipe"), recipe_folder(recipe_of(source)):
        _, reward = check_config(config)
        if takes_messages(config):
            return make_agent(source, server_renderer(), make_engine(config, None, 0), reward)
        config.model.path = unpacked(config.model.path, say)
        check_model_exists(config)
        renderer = renderer_of(config.model)
        if not source.has_recipe:
            _sample_as_published(source, override_texts(overrides))
        engine = _load_engine(source)
        return make_agent(source, renderer, engine, reward)


def connect_agent(
    server: str,
    model_or_run: str | Path,
    *,
    recipe: str | Path | None = None,
    overrides: Overrides = (),
    key: str | None = None,
) -> Agent:
    """An agent whose model an OpenAI-compatible server has; its tools run here.

    Args:
        server: The server's address, such as `http://127.0.0.1:8000`.
        model_or_run: The model's name at the server; or the folder of a run, for its tools and settings.
        recipe: As for `load_agent`.
        overrides: As for `load_agent`.
        key: The server's key.
    """
    at_server = override_texts({"engine.name": "openai", "engine.servers.urls": [server]})
    source = find_source(model_or_run, recipe=recipe, overrides=[*override_texts(overrides), *at_server])
    with no_exit("the code of the recipe"), recipe_folder(recipe_of(source)):
        _, reward = check_config(source.config)
        return make_agent(source, server_renderer(), make_openai_engine(source.config, key=key), reward)


def make_agent(source: AgentSource, renderer: ChatRenderer, engine: Engine, reward: RewardFunction) -> Agent:
    """An agent around an engine that is there already."""
    config = source.config
    sees_images = isinstance(engine, MessageEngine) or renderer.sees_images
    tools = ToolRunner(tool_policies(config), seed=config.trainer.seed, sees_images=sees_images)
    limits = RolloutLimits(
        max_steps=config.rollout.max_steps,
        max_images=config.rollout.max_images,
        max_episode_images=config.rollout.max_episode_images,
        concurrency=config.rollout.concurrency,
        deadline_seconds=config.rollout.deadline_seconds,
        retries=0,
    )
    rollout = Rollout(
        engine=engine,
        renderer=renderer,
        reward=no_outcome_reward,
        make_env=partial(make_env, section=config.env, runner=tools),
        limits=limits,
        tool_runner=tools,
    )
    if config.reward.timeout is not None:
        reward = in_workers(reward, tools.workers, timeout=config.reward.timeout)
    return Agent(
        source=source,
        renderer=renderer,
        engine=engine,
        rollout=rollout,
        reward=reward,
        tools=tools,
        sampling=_sampling(source),
    )


def _sample_as_published(source: AgentSource, overrides: Sequence[str]) -> None:
    """Take over the sampling that a model's generation config recommends, where no override says otherwise."""
    keys = {text.partition("=")[0].lstrip("+") for text in overrides}
    for name, value in generation_sampling(source.config.model.path).items():
        if f"rollout.{name}" not in keys:
            setattr(source.config.rollout, name, value)


def _load_engine(source: AgentSource) -> Engine:
    """An engine with the source's weights; the model they were read into is not kept."""
    config, device = source.config, choose_device(source.config.trainer.device)
    context = context_length_of(config)
    if source.checkpoint is None:
        policy = load_policy(
            config.model.path,
            dtype=config.model.dtype,
            device=device,
            trust_remote_code=config.model.trust_remote_code,
        )
        return make_engine(config, policy, context)
    saved: Any = load_checkpoint(*source.checkpoint).state
    policy = merge_trained(load_trained(config.model, saved["learner"]["policy"], device=device), config.model)
    config.model.lora.rank = 0  # merged
    return make_engine(config, policy, context)


def _sampling(source: AgentSource) -> SamplingParams:
    """How actions are sampled in training."""
    rollout = source.config.rollout
    return SamplingParams(
        max_tokens=rollout.max_tokens, temperature=rollout.temperature, top_p=rollout.top_p, top_k=rollout.top_k
    )
