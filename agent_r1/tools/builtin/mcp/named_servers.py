"""MCP servers by name: the section `tools.mcp` of a configuration, and entries `mcp:SERVER` of `env.tools`."""

from __future__ import annotations

import asyncio
import atexit
import inspect
from collections.abc import Mapping
from typing import Any

from agent_r1.errors import ConfigError, UnknownNameError, did_you_mean
from agent_r1.registry import check_arguments
from agent_r1.tools.base import BaseTool
from agent_r1.tools.builtin.mcp import loop
from agent_r1.tools.builtin.mcp.connection import CLOSE_SECONDS
from agent_r1.tools.builtin.mcp.server import McpServer

_servers: dict[str, McpServer] = {}


def make_server(name: str, settings: Any) -> McpServer:
    """A server as the section `tools.mcp` of the configuration describes it."""
    keys = [key for key in inspect.signature(McpServer).parameters if key != "name"]
    if not isinstance(settings, Mapping):
        raise ConfigError(f"tools.mcp.{name} must have keys such as command or url, found {settings!r}")
    unknown = [str(key) for key in settings if key not in keys]
    if unknown:
        raise ConfigError(f"unknown key 'tools.mcp.{name}.{unknown[0]}'. {did_you_mean(unknown[0], keys)}")
    check_arguments(McpServer, f"tools.mcp.{name}.", settings, f"MCP server '{name}'")
    return McpServer(name, **settings)


def declare_servers(servers: Mapping[str, McpServer]) -> None:
    """Give servers names for `mcp:NAME`. One that is declared again with the same settings stays connected."""
    for name, server in servers.items():
        present = _servers.get(name)
        if present is None or present.settings != server.settings:
            if present is not None:
                loop.submit(present.disconnect()).result(CLOSE_SECONDS)
            _servers[name] = server


async def disconnect_servers() -> None:
    """Disconnect from all servers that have a name; those started here end. A later call connects again."""
    if loop.is_running():
        await asyncio.gather(*(server.close() for server in _servers.values()))


@atexit.register
def close_servers() -> None:
    """`disconnect_servers`, from where there is no event loop."""
    if loop.is_running():
        closing = [loop.submit(server.disconnect()) for server in _servers.values()]
        for done in closing:
            done.result(CLOSE_SECONDS)


@BaseTool.families.register("mcp")
def tools_of(member: str) -> list[BaseTool]:
    """The tools that `SERVER` or `SERVER/tool` stands for."""
    name, slash, tool_name = member.partition("/")
    if name not in _servers:
        raise UnknownNameError(
            f"unknown MCP server '{name}'. {did_you_mean(name, _servers)} The section `tools.mcp` of the "
            "configuration names them"
        )
    tools = _servers[name].tools()
    if not slash:
        return tools
    chosen = [tool for tool in tools if tool.name == tool_name]
    if not chosen:
        advice = did_you_mean(tool_name, [tool.name for tool in tools])
        raise UnknownNameError(f"the MCP server '{name}' has no tool '{tool_name}'. {advice}")
    return chosen
