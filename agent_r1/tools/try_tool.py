"""`try_tool`: one call of a tool, run as a training run would run it, without a model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from agent_r1.tools.base import BaseTool, ToolContext
from agent_r1.tools.function import FunctionTool
from agent_r1.tools.runner import CallOutcome, ToolRunner
from agent_r1.types import Task, ToolCall


def try_tool(
    tool: BaseTool | Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    **limits: Any,
) -> CallOutcome:
    """What becomes of a call with these arguments, given as a model writes them: JSON values.

    `env_kwargs` are those of the row the tool is called in; `limits` change its policy, as `tools.<name>` does in a
    configuration. Worker processes that were needed are gone when this returns.

    >>> from agent_r1.tools import calculate
    >>> try_tool(calculate, {"expression": "6*7"}).response.text
    '42'
    >>> try_tool(calculate, {"formula": "6*7"}).status
    'invalid'
    """
    made = tool if isinstance(tool, BaseTool) else FunctionTool(tool)

    async def call() -> CallOutcome:
        context = ToolContext(task=Task(task_id="trial", prompt=(), env_kwargs=dict(env_kwargs or {})))
        tool_call = ToolCall(name=made.name, arguments=arguments, call_id="trial")
        async with ToolRunner({made.name: limits}) as runner:
            try:
                return await runner.call({made.name: made}, tool_call, context)
            finally:
                await made.close(context)

    return asyncio.run(call())
