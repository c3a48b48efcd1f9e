"""Tools: `BaseTool`, `@tool`, the runner of their calls, and the built-in ones."""

from agent_r1.tools.base import BaseTool, ToolContext, ToolInputError, ToolResponse, ToolResult, ToolUnavailableError
from agent_r1.tools.calculator import calculate
from agent_r1.tools.function import FunctionTool, tool
from agent_r1.tools.policy import ToolPolicy
from agent_r1.tools.runner import CallOutcome, ToolRunner, check_process_tool, run_call, tool_runner

__all__ = [
    "BaseTool",
    "CallOutcome",
    "FunctionTool",
    "ToolContext",
    "ToolInputError",
    "ToolPolicy",
    "ToolResponse",
    "ToolResult",
    "ToolRunner",
    "ToolUnavailableError",
    "calculate",
    "check_process_tool",
    "run_call",
    "tool",
    "tool_runner",
]
