"""Tools of a data row: a row chooses among the tools that the configuration allows.

    env: {name: tool, tools: [calculate, {name: python, sandbox: namespaces}], row_tools: [{name: search, index: wiki}]}

    "env_kwargs": {"tools": ["python"]}                              the configured one, with its sandbox
    "env_kwargs": {"tools": [{"name": "search", "index": "wiki"}]}   the listed entry with all of the row's arguments
    "env_kwargs": {"tools": ["calculate"]}                           a registered name works without being listed
    "env_kwargs": {"tools": [{"name": "search", "k": 5}]}            `k` is in `SearchTool.row_arguments`

A row cannot name code (`module:attribute`) unless the configuration lists the same entry, and cannot set an argument
that the tool's class does not allow rows to set: sandboxes, time limits, paths and URLs belong in the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_r1.errors import AgentR1Error, DataError
from agent_r1.tools.base import BaseTool

ToolEntry = str | Mapping[str, Any] | BaseTool
"""An entry of a list of tools: a name, `{name: ..., <argument>: ...}`, or a tool itself."""


def tools_of_row(task_id: str, entries: Any, configured: Sequence[ToolEntry]) -> list[BaseTool]:
    """The tools that a row names in `env_kwargs.tools`, among those listed in the configuration or registered."""
    if not isinstance(entries, list | tuple):
        raise DataError(f"task '{task_id}': env_kwargs.tools must be a list of tools, found {type(entries).__name__}")
    tools: list[BaseTool] = []
    for entry in entries:
        try:
            tools.extend(_tools(entry, configured))
        except AgentR1Error as error:
            raise DataError(f"task '{task_id}', env_kwargs.tools: {error}") from error
    return tools


def _tools(entry: Any, configured: Sequence[ToolEntry]) -> list[BaseTool]:
    if isinstance(entry, BaseTool):  # a task made in Python, not a row
        return [entry]
    requested = {"name": entry} if isinstance(entry, str) else entry
    if not isinstance(requested, Mapping) or not isinstance(requested.get("name"), str):
        raise DataError(f"an entry is a name or an object with a 'name', found {entry!r:.80}")
    name = str(requested["name"])
    namesakes = [other for other in configured if _as_mapping(other)["name"] == name]
    for other in namesakes:
        if all(key in _as_mapping(other) and _as_mapping(other)[key] == value for key, value in requested.items()):
            return BaseTool.find(other)
    if len(requested) == 1 and name.partition(":")[0] in BaseTool.families.names():
        return BaseTool.find(name)
    registered = BaseTool.registry.registered(name) if not namesakes else None
    return [_with_row_arguments(name, requested, namesakes[0] if namesakes else name, registered)]


def _with_row_arguments(name: str, requested: Mapping[str, Any], base: ToolEntry, registered: Any) -> BaseTool:
    """The tool with the configuration's arguments, overridden by those that its class allows rows to set."""
    configured = {key: value for key, value in _as_mapping(base).items() if key != "name"}
    changes = {
        str(key): value
        for key, value in requested.items()
        if key != "name" and not (key in configured and configured[key] == value)
    }
    kind = base if isinstance(base, BaseTool) else registered or BaseTool.registry.get(name)
    allowed: tuple[str, ...] = getattr(kind, "row_arguments", ()) if isinstance(kind, type) else ()
    refused = sorted(set(changes) - set(allowed))
    if refused:
        permitted = f"it may set {', '.join(allowed)}" if allowed else "it may set none"
        raise DataError(
            f"a row may not set '{refused[0]}' of the tool '{name}' ({permitted}): arguments belong in env.tools "
            "of the configuration, or in env.row_tools, which lists what rows may name"
        )
    return BaseTool.get(name, **{**configured, **changes}) if not isinstance(base, BaseTool) else base


def _as_mapping(entry: ToolEntry) -> Mapping[str, Any]:
    if isinstance(entry, BaseTool):
        return {"name": entry.name}
    return {"name": entry} if isinstance(entry, str) else entry
