"""`make_env`: the environment of one episode, from a task and the configuration's `env` section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_r1.envs.base import AgentEnv
from agent_r1.envs.wrappers import wrap_env
from agent_r1.errors import DataError
from agent_r1.tools import ToolRunner
from agent_r1.types import Task

DEFAULT_ENV = "tool"
"""The environment of a configuration that sets no `env.name`."""


def make_env(task: Task, section: Mapping[str, Any], *, runner: ToolRunner | None = None) -> AgentEnv:
    """A new environment for `task`, wrapped in the limits that the section lists.

    `section` is the configuration's `env`: `name`, `limits`, and the environment's own arguments. A row may name
    another registered environment with `env_kwargs["env"]`; that one is made without arguments. `runner` runs the
    tool calls of environments that have tools.

    `make_env(task, {"name": "tool", "tools": ["calculate"], "limits": ["time"]})` is
    `TimeLimit(ToolEnv(tools=["calculate"]))`.
    """
    arguments = dict(section)
    name, limits = str(arguments.pop("name", DEFAULT_ENV)), arguments.pop("limits", ())
    row_name = row_env_name(task)
    if row_name is None or row_name == name:
        env = AgentEnv.registry.get(name)(**arguments)
    else:
        env = AgentEnv.registry.registered(row_name)()
    env = wrap_env(env, limits)
    if runner is not None:
        env.set_tool_runner(runner)
    return env


def row_env_name(task: Task) -> str | None:
    """The environment that a row names in `env_kwargs["env"]`; None when it names none."""
    name = task.env_kwargs.get("env")
    if name is not None and not isinstance(name, str):
        raise DataError(f"task '{task.task_id}': env_kwargs.env must be the name of an environment, found {name!r:.80}")
    return name
