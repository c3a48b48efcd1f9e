"""One call of a tool inside a worker process, and what travels back: plain data, already cut to length."""

from __future__ import annotations

import inspect
import io
import pickle
from collections.abc import Mapping
from typing import Any

from agent_r1.tools.answers import as_result, checked_result, cut_middle
from agent_r1.tools.base import BaseTool, ToolContext, ToolResponse, ToolResult
from agent_r1.tools.function import FunctionTool
from agent_r1.tools.references import Reference

Packed = tuple[str, tuple[Any, ...], bool, float | None, Mapping[str, Any], Mapping[str, Any] | None]
"""Text, images, whether the text was cut, reward, notes, and the episode's scratch space when the call changed it."""


async def run_tool(
    reference: Reference, name: str, args: Mapping[str, Any], context: ToolContext, max_chars: int
) -> Packed:
    """Run one call of the tool defined at `reference`."""
    before = pickle.dumps(context.state)
    response, reward, info = await _result(reference.load(), name, args, context)
    text = cut_middle(response.text, max_chars)
    changed = pickle.dumps(context.state) != before
    images = tuple(map(_portable_image, response.images))
    return text, images, len(response.text) > max_chars, reward, info, context.state if changed else None


def unpack(packed: Packed, context: ToolContext) -> tuple[ToolResult, bool]:
    """The tool result of what `run_tool` sent, and whether its text was cut."""
    text, images, was_cut, reward, info, state = packed
    if state is not None:
        context.state.clear()
        context.state.update(state)
    return checked_result((ToolResponse(text=text, images=tuple(images)), reward, info)), was_cut


def reference_of(tool: BaseTool) -> Reference:
    """How a worker finds a tool: by its function, or by a class that needs no arguments."""
    return Reference.of(tool.function if isinstance(tool, FunctionTool) else type(tool))


async def _result(found: Any, name: str, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
    if inspect.isfunction(found):
        found = FunctionTool(found, name)
    tool: BaseTool = found() if isinstance(found, type) else found
    if isinstance(tool, FunctionTool):
        returned = tool.execute_here(args, context)
        return as_result(await returned if inspect.isawaitable(returned) else returned)
    return checked_result(await tool.execute(args, context=context))


def _portable_image(image: Any) -> Any:
    """A PIL image as the bytes of a PNG file; anything else as it is."""
    if not callable(getattr(image, "save", None)):
        return image
    file = io.BytesIO()
    image.save(file, format="PNG")
    return file.getvalue()
