"""Tools: `BaseTool`, `@tool`, the runner of their calls, and the built-in ones."""

from agent_r1.tools.base import (
    BaseTool,
    ToolContext,
    ToolInputError,
    ToolResponse,
    ToolResult,
    ToolTimeoutError,
    ToolUnavailableError,
    check_form,
)
from agent_r1.tools.builtin.calculator import calculate
from agent_r1.tools.builtin.mcp import McpServer
from agent_r1.tools.builtin.python import PythonTool
from agent_r1.tools.builtin.search import SearchTool
from agent_r1.tools.check import check_tool, example_arguments
from agent_r1.tools.cores import ROLLOUT_WORKERS, num_cores
from agent_r1.tools.exit_status import signal_name
from agent_r1.tools.function import FunctionTool, tool
from agent_r1.tools.policy import ToolPolicy
from agent_r1.tools.results import cut_middle
from agent_r1.tools.row_tools import ToolEntry, tools_of_row
from agent_r1.tools.runner import CallOutcome, ToolRunner, check_process_tool, run_call
from agent_r1.tools.sandbox.layers import SandboxLimits
from agent_r1.tools.sandbox.sandbox import Sandbox
from agent_r1.tools.try_tool import try_tool

__all__ = [
    "ROLLOUT_WORKERS",
    "BaseTool",
    "CallOutcome",
    "FunctionTool",
    "McpServer",
    "PythonTool",
    "Sandbox",
    "SandboxLimits",
    "SearchTool",
    "ToolContext",
    "ToolEntry",
    "ToolInputError",
    "ToolPolicy",
    "ToolResponse",
    "ToolResult",
    "ToolRunner",
    "ToolTimeoutError",
    "ToolUnavailableError",
    "calculate",
    "check_form",
    "check_process_tool",
    "check_tool",
    "cut_middle",
    "example_arguments",
    "num_cores",
    "run_call",
    "signal_name",
    "tool",
    "tools_of_row",
    "try_tool",
]
