"""The tools that configuration and rows name, and their policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_r1.config import Config
from agent_r1.envs import DEFAULT_ENV, row_env_name
from agent_r1.errors import ConfigError, did_you_mean, report_problems
from agent_r1.tools import BaseTool, ToolPolicy, ToolRunner, check_form, check_process_tool, tools_of_row
from agent_r1.training.plan.problems import TITLE, Problems
from agent_r1.types import Task


def tool_policies(config: Config) -> dict[str, Any]:
    """The configuration's changes to the policies of tools, by tool name."""
    return {name: changes for name, changes in config.tools.items() if name != "mcp"}


def mcp_section(config: Config) -> Mapping[str, Any]:
    """The MCP servers of the configuration, by name."""
    section = config.tools.get("mcp", {})
    if not isinstance(section, Mapping):
        raise ConfigError(f"tools.mcp={section!r:.80} must name servers: tools.mcp.shop.url=http://localhost:8000/mcp")
    return section


def listed_tools(config: Config, keys: Sequence[str] = ("tools", "row_tools")) -> list[Any]:
    """The entries of `env.tools` and `env.row_tools`; anything else than a list of entries is refused."""
    tools: list[Any] = []
    for key in keys:
        entries = config.env.get(key, [])
        if not isinstance(entries, list | tuple) or not all(
            isinstance(entry, str | BaseTool) or (isinstance(entry, Mapping) and isinstance(entry.get("name"), str))
            for entry in entries
        ):
            raise ConfigError(
                f"env.{key}={entries!r:.80} must be a list of names and of entries like {{name: search, index: wiki}}"
            )
        tools.extend(entries)
    return tools


def find_tools(config: Config) -> None:
    """Look up every tool of `env.tools`; an error names one that there is not."""
    for entry in listed_tools(config, ["tools"]):
        BaseTool.find(entry)


def tools_in_use(config: Config, tasks: Sequence[Task]) -> list[BaseTool]:
    """The tools of the configuration, and those that rows name."""
    tools = [tool for entry in listed_tools(config, ["tools"]) for tool in BaseTool.find(entry)]
    for task in distinct_setups(tasks):
        tools.extend(tools_of_task(config, task))
    return tools


def distinct_setups(tasks: Sequence[Task]) -> list[Task]:
    """One task per combination of names, so that a million rows are not a million look-ups."""
    unique = {(t.agent_name, str(t.env_kwargs.get("env")), str(t.env_kwargs.get("tools"))): t for t in tasks}
    return list(unique.values())


def tools_of_task(config: Config, task: Task) -> list[BaseTool]:
    """The tools that a row names itself; in an environment of its own it has none of the configured ones."""
    if "tools" not in task.env_kwargs:
        return []
    tools = listed_tools(config) if row_env_name(task) in (None, config.env.get("name", DEFAULT_ENV)) else []
    return tools_of_row(task.task_id, task.env_kwargs["tools"], tools)


def check_tools(config: Config, tasks: Sequence[Task]) -> None:
    """Refuse policies of unknown tools, unknown keys of policies, and process tools that a process could not import."""
    used = tools_in_use(config, tasks)
    problems = Problems()
    for tool in {id(tool): tool for tool in used}.values():
        problems.run(check_form, tool)
    report_problems(problems.found, ConfigError, TITLE)
    names = {*BaseTool.registry.names(), *(tool.name for tool in used)}
    for name, changes in tool_policies(config).items():
        if name not in names:
            problems.found.append(f"unknown tool in 'tools.{name}'. {did_you_mean(name, names)}")
        elif not isinstance(changes, Mapping):
            problems.found.append(f"tools.{name}={changes} is not a policy; write for example tools.{name}.timeout=5")
        else:
            problems.run(ToolPolicy().with_overrides, name, changes)
    report_problems(problems.found, ConfigError, TITLE)
    runner = ToolRunner(tool_policies(config))
    for tool in {id(tool): tool for tool in used}.values():
        if runner.policy_of(tool).process:
            problems.run(check_process_tool, tool)
    report_problems(problems.found, ConfigError, "tools that should run in worker processes cannot:")
