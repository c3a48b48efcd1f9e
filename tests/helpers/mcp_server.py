"""A real MCP server for the tests: `python mcp_server.py` over stdio, with a port over HTTP."""

from __future__ import annotations

import asyncio
import base64
import os
import sys

from mcp.server.mcpserver import Image, MCPServer

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

server = MCPServer("tests")


@server.tool()
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    await asyncio.sleep(0.01)
    return a + b


@server.tool()
def refuse(reason: str) -> str:
    """Fail with a reason."""
    raise ValueError(reason)


@server.tool()
async def wait(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "waited"


@server.tool()
def picture() -> list[str | Image]:
    """A picture with a caption."""
    return ["one pixel", Image(data=PIXEL, format="png")]


@server.tool()
def process() -> str:
    """The server's process."""
    return str(os.getpid())


@server.tool()
def variable(name: str) -> str:
    """An environment variable."""
    return os.environ.get(name, "")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
