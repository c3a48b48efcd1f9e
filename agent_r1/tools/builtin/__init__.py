"""The tools that come with Agent-R1: calculator, Python, search, and those of MCP servers."""

from agent_r1.tools.builtin.calculator import evaluate, format_number
from agent_r1.tools.builtin.mcp import declare_servers, make_server

__all__ = [
    "declare_servers",
    "evaluate",
    "format_number",
    "make_server",
]
