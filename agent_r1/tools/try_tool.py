"""`try_tool`: run one call of a tool as a training run would, without a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agent_r1.errors import ConfigError
from agent_r1.event_loop import callable_in_event_loop, run_cancelling
from agent_r1.tools.base import BaseTool, ToolContext
from agent_r1.tools.function import FunctionTool
from agent_r1.tools.runner import CallOutcome, ToolRunner
from agent_r1.types import Task, ToolCall


@callable_in_event_loop
def try_tool(
    tool: BaseTool | Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    **limits: Any,
) -> CallOutcome:
    """The outcome of a call with these arguments, JSON values as a model writes them.

    `env_kwargs` are those of the row the tool is called in; `limits` override its policy, as `tools.<name>` does in a
    configuration. Worker processes and MCP servers that the call started have ended when this returns.

    >>> from agent_r1.tools import calculate
    >>> try_tool(calculate, {"expression": "6*7"}).response.text
    '42'
    >>> try_tool(calculate, {"formula": "6*7"}).status
    'invalid'
    """
    target = tool if isinstance(tool, BaseTool) else FunctionTool(tool)
    if not isinstance(arguments, Mapping):
        raise ConfigError(f"arguments must be a mapping such as {{'item': 'tea'}}, found {arguments!r:.80}")

    async def call() -> CallOutcome:
        context = ToolContext(task=Task(task_id="trial", prompt=(), env_kwargs=dict(env_kwargs or {})))
        tool_call = ToolCall(name=target.name, arguments=arguments, call_id="trial")
        async with ToolRunner({target.name: limits}) as runner:
            try:
                return await runner.call({target.name: target}, tool_call, context)
            finally:
                await target.close(context)

    return run_cancelling(call)
