"""Which tools a data row may have: rows choose, configurations decide.

    env: {name: tool, tools: [calculate, {name: python, sandbox: namespaces}], row_tools: [{name: search, index: wiki}]}

    "env_kwargs": {"tools": ["python"]}                              the configured one, with its sandbox
    "env_kwargs": {"tools": [{"name": "search", "index": "wiki"}]}   the listed entry that has all that the row says
    "env_kwargs": {"tools": ["calculate"]}                           a registered name works without being listed
    "env_kwargs": {"tools": [{"name": "search", "k": 5}]}            `k` is in `SearchTool.row_arguments`

A row never names code (`module:attribute`), unless the configuration lists the very same, and never sets an argument
that the tool's class does not leave to rows: sandboxes, time limits, paths and addresses belong in the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_r1.errors import AgentR1Error, DataError
from agent_r1.tools.base import BaseTool

ToolEntry = str | Mapping[str, Any] | BaseTool
"""An entry of a list of tools: a name, `{name: ..., <argument>: ...}`, or a tool itself."""


def tools_of_row(task_id: str, named: Any, listed: Sequence[ToolEntry]) -> list[BaseTool]:
    """The tools that a row names in `env_kwargs.tools`, out of those the configuration lists and those registered."""
    if not isinstance(named, list | tuple):
        raise DataError(f"task '{task_id}': env_kwargs.tools must be a list of tools, found {type(named).__name__}")
    found: list[BaseTool] = []
    for entry in named:
        try:
            found.extend(_tools(entry, listed))
        except AgentR1Error as error:
            raise DataError(f"task '{task_id}', env_kwargs.tools: {error}") from error
    return found


def _tools(entry: Any, listed: Sequence[ToolEntry]) -> list[BaseTool]:
    if isinstance(entry, BaseTool):  # a task made in Python, not a row
        return [entry]
    said = {"name": entry} if isinstance(entry, str) else entry
    if not isinstance(said, Mapping) or not isinstance(said.get("name"), str):
        raise DataError(f"an entry is a name or an object with a 'name', found {entry!r:.80}")
    name = str(said["name"])
    namesakes = [known for known in listed if _as_mapping(known)["name"] == name]
    for known in namesakes:
        if all(key in _as_mapping(known) and _as_mapping(known)[key] == value for key, value in said.items()):
            return BaseTool.find(known)
    if len(said) == 1 and name.partition(":")[0] in BaseTool.families.names():
        return BaseTool.find(name)
    registered = BaseTool.registry.registered(name) if not namesakes else None
    return [_with_row_arguments(name, said, namesakes[0] if namesakes else name, registered)]


def _with_row_arguments(name: str, said: Mapping[str, Any], base: ToolEntry, registered: Any) -> BaseTool:
    """The tool with what the configuration says about it and, on top, what its class leaves to rows."""
    configured = {key: value for key, value in _as_mapping(base).items() if key != "name"}
    given = {
        str(key): value
        for key, value in said.items()
        if key != "name" and not (key in configured and configured[key] == value)
    }
    kind = base if isinstance(base, BaseTool) else registered or BaseTool.registry.get(name)
    may_set: tuple[str, ...] = getattr(kind, "row_arguments", ()) if isinstance(kind, type) else ()
    refused = sorted(set(given) - set(may_set))
    if refused:
        allowed = f"it may set {', '.join(may_set)}" if may_set else "it may set none"
        raise DataError(
            f"a row may not set '{refused[0]}' of the tool '{name}' ({allowed}): arguments belong in env.tools "
            "of the configuration, or in env.row_tools, which lists what rows may name"
        )
    return BaseTool.get(name, **{**configured, **given}) if not isinstance(base, BaseTool) else base


def _as_mapping(entry: ToolEntry) -> Mapping[str, Any]:
    if isinstance(entry, BaseTool):
        return {"name": entry.name}
    return {"name": entry} if isinstance(entry, str) else entry
