"""Run one call of a tool inside a worker process, and pack its result as plain data, cut to length."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Mapping
from typing import Any

from agent_r1.errors import ConfigError
from agent_r1.tools.base import BaseTool, ToolContext, ToolResponse, ToolResult
from agent_r1.tools.function import FunctionTool
from agent_r1.tools.results import as_result, checked_result, cut_middle, read_images
from agent_r1.tools.workers.function_ref import FunctionRef

Origin = tuple[FunctionRef, Mapping[str, Any]]
"""Where a tool's function or class is defined, and the arguments of the class."""

StateChanges = tuple[Mapping[str, Any], tuple[str, ...]]
"""The entries of `context.state` that a call set or changed, and the keys that it removed."""

Packed = tuple[str, tuple[Any, ...], bool, bool, float | None, Mapping[str, Any], StateChanges]
"""Text, images as PNG, whether the episode ends, whether the text was cut, reward, notes, and what the call changed in
`context.state`."""


async def run_tool(origin: Origin, name: str, args: Mapping[str, Any], context: ToolContext, max_chars: int) -> Packed:
    """Run one call of a tool."""
    before = _pickled(context.state)
    response, reward, info = await _result(origin, name, args, context)
    text = cut_middle(response.text, max_chars)
    after = _pickled(context.state)
    # Entry by entry: those that other tools keep there need not be plain data while this call leaves them alone.
    changed = {key: context.state[key] for key, value in after.items() if before.get(key) != value}
    removed = tuple(key for key in before if key not in after)
    # As PNG: a worker sends plain data alone.
    images = tuple(picture.png() for picture in read_images(response.images, name)) if response.images else ()
    was_cut = len(response.text) > max_chars
    return text, images, bool(response.ends_episode), was_cut, reward, info, (changed, removed)


def unpack(packed: Packed, context: ToolContext) -> tuple[ToolResult, bool]:
    """The tool result of what `run_tool` sent, and whether its text was cut."""
    text, images, ends, was_cut, reward, info, (changed, removed) = packed
    context.state.update(changed)
    for key in removed:
        context.state.pop(key, None)
    response = ToolResponse(text=text, images=tuple(images), ends_episode=ends)
    return checked_result((response, reward, info)), was_cut


def origin_of(tool: BaseTool) -> Origin:
    """What a worker makes a copy of the tool from: its function, or its class and arguments.

    Raises `ConfigError` for a tool that a worker cannot make.
    """
    if isinstance(tool, FunctionTool):
        return FunctionRef.of(tool.function), {}
    if tool.made_with is None and inspect.signature(type(tool)).parameters:
        raise ConfigError(
            f"tool '{tool.name}' was made with arguments that a worker process does not know. Register its class and "
            f"give them in env.tools: {{name: {tool.name}, ...}}"
        )
    return FunctionRef.of(type(tool)), tool.made_with or {}


def _pickled(state: Mapping[str, Any]) -> dict[str, bytes]:
    return {key: pickle.dumps(value) for key, value in state.items()}


async def _result(origin: Origin, name: str, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
    reference, made_with = origin
    target = reference.load()
    if inspect.isfunction(target):
        target = FunctionTool(target, name)
    tool: BaseTool = target(**made_with) if isinstance(target, type) else target
    if isinstance(tool, FunctionTool):
        returned = tool.execute_here(args, context)
        return as_result(await returned if inspect.isawaitable(returned) else returned)
    return checked_result(await tool.execute(args, context=context))
