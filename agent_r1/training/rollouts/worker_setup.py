"""`RolloutSetup`: what a rollout worker needs to run the episodes of a run: configuration, tokenizer, names.

Environments, tools and rewards are made in the worker. To other machines their code travels beside it (see
`rollout/workers/ray_cluster.py`).
"""

from __future__ import annotations

import os
import pickle
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from agent_r1.chat import (
    ChatRenderer,
    Tokenizer,
    portable_tokenizer,
    server_renderer,
)
from agent_r1.config import Config
from agent_r1.engines import Engine, MessageEngine
from agent_r1.envs import AgentEnv
from agent_r1.errors import ConfigError
from agent_r1.gateway import Gateway
from agent_r1.registry import Registry, find_module, open_recipe_copy, open_recipe_package, recipe_folder
from agent_r1.rewards import find_reward, reward_functions
from agent_r1.rollout import Rollout
from agent_r1.rollout.workers import ProxyEngine, RemoteRollout, make_cluster, recipe_copy
from agent_r1.tools import BaseTool, ToolRunner
from agent_r1.tools.builtin import declare_servers, make_server
from agent_r1.tools.workers import Code, code_on_disk, modules_of, refuse_changed_code
from agent_r1.training.model_check import renderer_of
from agent_r1.training.plan import RunPlan, distinct_setups, first_observation, tool_policies
from agent_r1.training.rollouts.parts import rollout_parts
from agent_r1.types import TokenIds

_REGISTRIES: Mapping[str, Registry[Any]] = {
    "tools": BaseTool.registry,
    "environments": AgentEnv.registry,
    "rewards": reward_functions,
}
"""Where objects that are passed to `agent_r1.train` are registered."""

_MAX_COMPARED = 64
"""First prompts with which the tokenizer of workers is compared with the driver's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutSetup:
    """A run as its rollout workers see it."""

    config: Config
    tokenizer: Tokenizer | None
    """None: workers load it from `model.path`, with `transformers`, unless the engine takes messages."""
    stop_ids: TokenIds
    context_length: int
    takes_messages: bool
    objects: Any
    """Entries that are registered as objects, by registry and name; pickled on the way."""
    folder: Path
    """The working folder of the driver."""
    code: Code
    """The recipe's code as the run began: a worker that starts later must not run another one."""

    def pickled(self, dumps: Callable[[Any], bytes]) -> bytes:
        """What is sent to the worker. Objects of the recipe are inside as bytes: they can be read when its files are
        importable."""
        return dumps(replace(self, objects=dumps(self.objects)))

    @asynccontextmanager
    async def rollout(self, engine: ProxyEngine) -> AsyncIterator[Rollout]:
        """In the worker: what runs the episodes; the end of the block stops tools and gateway."""
        if self.folder.is_dir():  # relative paths of the configuration, where the file system is shared
            os.chdir(self.folder)
        config, copy = self.config, recipe_copy()
        if config.recipe is not None and copy is not None:
            open_recipe_copy(copy, Path(config.recipe).resolve())
            config = replace(config, recipe=str(copy))
        elif config.recipe is not None:
            open_recipe_package(Path(config.recipe))
        with recipe_folder(None if config.recipe is None else Path(config.recipe)):
            self._register_objects()
            for module in config.imports:
                find_module(module, f"module '{module}' of imports")
            servers = config.tools.get("mcp", {})
            declare_servers({name: make_server(name, settings) for name, settings in servers.items()})
            reward = find_reward(config.reward.function, [(part.name, part.weight) for part in config.reward.functions])
            refuse_changed_code(self.code)
            renderer = self._renderer(config)
            sees_images = self.takes_messages or renderer.sees_images
            async with (
                ToolRunner(tool_policies(config), seed=config.trainer.seed, sees_images=sees_images) as tools,
                Gateway(config.agent) as gateway,
            ):
                yield Rollout(engine=engine, renderer=renderer, **rollout_parts(config, reward, tools, gateway))

    def _renderer(self, config: Config) -> ChatRenderer:
        if self.takes_messages:
            return server_renderer()
        if self.tokenizer is not None:
            return ChatRenderer(self.tokenizer, config.model.tool_format, stop_ids=self.stop_ids)
        return renderer_of(config.model)

    def _register_objects(self) -> None:
        try:
            registered = pickle.loads(self.objects)
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                "the tools, environments and rewards that were given as objects need something that workers cannot "
                f"import ({error}); put it into a module of its own, and with rollout.workers=ray add that module's "
                "folder or file to rollout.ray.modules"
            ) from error
        for kind, entries in registered.items():
            for name, entry in entries.items():
                _REGISTRIES[kind].add(name, entry, replaceable=True)


def make_remote_rollout(
    plan: RunPlan,
    renderer: ChatRenderer,
    engine: Engine,
    tools: ToolRunner,
    gateway: Gateway,
    *,
    announce: Callable[[str], None],
) -> RemoteRollout:
    """What runs the episodes of a run in worker processes, of this machine or of a Ray cluster."""
    config, takes_messages = plan.config, isinstance(engine, MessageEngine)
    tokenizer = None if takes_messages else _tokenizer_to_send(plan, renderer)
    setup = RolloutSetup(
        config=config,
        tokenizer=tokenizer,
        stop_ids=renderer.stop_ids,
        context_length=engine.context_length,
        takes_messages=takes_messages,
        objects=_given_parts(config),
        folder=Path.cwd(),
        code=_recipe_code(config),
    )
    cluster, limits = make_cluster(config, setup)
    return RemoteRollout(
        cluster=cluster,
        settings=limits,
        announce=announce,
        engine=engine,
        renderer=renderer,
        **rollout_parts(config, plan.reward, tools, gateway),
    )


def _recipe_code(config: Config) -> Code:
    """The code of the recipe's modules as the run begins."""
    if config.recipe is None:
        return {}
    return code_on_disk(modules_of(open_recipe_package(Path(config.recipe).resolve())))


def _given_parts(config: Config) -> dict[str, dict[str, Any]]:
    """Of the entries that were given as objects, those that the configuration names: this process may have had other
    runs, whose objects these workers do without."""
    names = set(_texts([asdict(config.reward), config.env]))
    return {
        kind: {name: entry for name, entry in registry.given().items() if name in names}
        for kind, registry in _REGISTRIES.items()
    }


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from chain.from_iterable(map(_texts, value.values()))
    elif isinstance(value, (list, tuple)):
        yield from chain.from_iterable(map(_texts, value))


def _tokenizer_to_send(plan: RunPlan, renderer: ChatRenderer) -> Tokenizer | None:
    """The tokenizer without `transformers`, if it writes the first prompts of some tasks in the same way; None for a
    model that reads images, whose processor is in `transformers`."""
    if renderer.sees_images:
        return None
    tasks = distinct_setups([*plan.train_tasks, *plan.eval_tasks])[:_MAX_COMPARED]
    tasks += plan.train_tasks[: _MAX_COMPARED - len(tasks)]
    observations = [first_observation(plan, task) for task in tasks]
    return portable_tokenizer(renderer, plan.config.model.tool_format, observations)
