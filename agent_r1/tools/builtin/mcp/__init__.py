"""Tools of MCP servers, through the official client: over stdio (a command) or streamable HTTP (a URL).

tools:
  mcp:
    files: {command: [npx, -y, "@modelcontextprotocol/server-filesystem", data]}
    shop: {url: "http://localhost:8000/mcp"}
env:
  tools: ["mcp:files", "mcp:shop/price"]
"""

from agent_r1.tools.builtin.mcp.named_servers import (
    close_servers,
    declare_servers,
    disconnect_servers,
    make_server,
    tools_of,
)
from agent_r1.tools.builtin.mcp.server import McpServer, McpToolError

__all__ = [
    "McpServer",
    "McpToolError",
    "close_servers",
    "declare_servers",
    "disconnect_servers",
    "make_server",
    "tools_of",
]
