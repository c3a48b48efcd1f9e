"""Tools: `BaseTool`, `@tool`, and the built-in ones."""

from agent_r1.tools.base import BaseTool, ToolContext, ToolInputError, ToolResponse, ToolResult
from agent_r1.tools.calculator import calculate
from agent_r1.tools.function import FunctionTool, tool
from agent_r1.tools.python import PythonTool
from agent_r1.tools.runner import CallOutcome, run_call
from agent_r1.tools.sandbox import Sandbox, SandboxLimits

__all__ = [
    "BaseTool",
    "CallOutcome",
    "FunctionTool",
    "PythonTool",
    "Sandbox",
    "SandboxLimits",
    "ToolContext",
    "ToolInputError",
    "ToolResponse",
    "ToolResult",
    "calculate",
    "run_call",
    "tool",
]
