"""`env=mcp:python server.py`, `env=mcp:http://localhost:8000/mcp`: the tools of one MCP server. Data and reward are
the user's own."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from agent_r1.constraints import Seconds
from agent_r1.envs.context import ContextChoice
from agent_r1.envs.ready.base import ReadyEnv, env_kinds
from agent_r1.errors import ConfigError, require_installed
from agent_r1.tools.builtin import make_server

SERVER = "server"
"""What the expanded configuration calls the server."""


@env_kinds.register("mcp")
def mcp(
    name: str,
    *,
    tools: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: Seconds = 30.0,
    connect_timeout: Seconds = 30.0,
    context: ContextChoice = "append",
) -> ReadyEnv:
    """The server that a command starts, or that answers at a URL. `tools` chooses some of its tools; the others are
    arguments of `McpServer`, and of `ToolEnv`."""
    require_installed("mcp", "mcp", "mcp", "env=mcp:...")
    if name.startswith(("http://", "https://")):
        place: dict[str, Any] = {"url": name}
    else:
        try:
            place = {"command": shlex.split(name)}
        except ValueError as error:
            raise ConfigError(f"env=mcp:{name} is not a command line ({error}); quote it as in a shell") from None
    optional = {"env": env, "headers": headers}
    settings = {
        **place,
        **{key: dict(value) for key, value in optional.items() if value},
        "timeout": timeout,
        "connect_timeout": connect_timeout,
    }
    make_server(SERVER, settings)
    entries = [f"mcp:{SERVER}/{tool}" for tool in tools] or [f"mcp:{SERVER}"]
    return ReadyEnv(
        env={"name": "tool", "tools": entries, "context": context},
        tools={"mcp": {SERVER: settings}},
    )
