"""`McpServer`: one server and its tools.

All connections live on one event loop in a thread (`loop.py`), so that tools can be called from any loop. What a tool
reports as an error is an error the model reads. A lost server is not the policy's fault: calls in flight end their
episodes with `tool_error`, and the next call connects again. No call is ever sent twice.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from agent_r1.constraints import Seconds
from agent_r1.errors import ConfigError, EpisodeError
from agent_r1.event_loop import timeout
from agent_r1.registry import check_arguments
from agent_r1.tools.base import BaseTool, ToolInputError, ToolResponse, ToolResult, ToolTimeoutError
from agent_r1.tools.builtin.mcp import loop
from agent_r1.tools.builtin.mcp.connection import SLACK_SECONDS, ConnectError, Connection, import_client
from agent_r1.tools.policy import ToolPolicy
from agent_r1.types import StopReason, ToolSchema

_CLOSED = "Connection closed"
"""The client's message for a command that is gone. Servers use the same code, -32000, for errors of their own."""


class McpToolError(RuntimeError):
    """The server's tool reported an error; the message is for the model."""


class McpServer:
    """One server and its tools.

    Args:
        name: What the configuration calls it.
        command: Starts the server, with its arguments; it speaks over standard input and output.
        url: Where the server answers, when it is not started here.
        env: Environment variables for the command. It inherits only the usual few, such as PATH and HOME.
        headers: Sent with every HTTP request.
        timeout: Maximum seconds per call.
        connect_timeout: Maximum seconds until the server first answers.
    """

    def __init__(
        self,
        name: str,
        *,
        command: Sequence[str] = (),
        url: str | None = None,
        env: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: Seconds = 30.0,
        connect_timeout: Seconds = 30.0,
    ) -> None:
        if bool(command) == bool(url):
            raise ConfigError(f"the MCP server '{name}' needs either a command or a url")
        limits = {"timeout": timeout, "connect_timeout": connect_timeout}
        check_arguments(McpServer, "", limits, f"MCP server '{name}'")
        self.name = name
        self.command = tuple(command)
        self.url = url
        self.env = dict(env or {})
        self.headers = dict(headers or {})
        self.timeout = timeout
        self.connect_timeout = connect_timeout
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()
        self._tools: list[BaseTool] | None = None

    @property
    def settings(self) -> tuple[Any, ...]:
        """Two servers of one name with equal settings are the same."""
        return (self.command, self.url, self.env, self.headers, self.timeout, self.connect_timeout)

    async def connect(self) -> None:
        """Start or reach the server and list its tools."""
        await loop.from_any_loop(self._connect())

    def tools(self) -> list[BaseTool]:
        """The server's tools; connects first, and blocks until it has, when `connect` was not called."""
        if self._tools is None:
            try:
                loop.submit(self._connect()).result()
            except EpisodeError as error:
                raise ConfigError(error.details) from error
        return list(self._tools or ())

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """The result of one of its tools."""
        return await loop.from_any_loop(self._call(tool, dict(arguments)))

    async def close(self) -> None:
        """Disconnect; a server that was started here ends. A later call connects again."""
        await loop.from_any_loop(self.disconnect())

    # What follows runs on the servers' loop.

    async def disconnect(self) -> None:
        """`close`, for callers on the servers' loop."""
        async with self._opening:
            connection, self._connection = self._connection, None
            if connection is not None:
                await connection.close()

    async def _connect(self) -> Connection:
        async with self._opening:
            if self._connection is None:
                import_client()  # before the connection's own timeout starts
                connection = Connection(self)
                try:
                    self._tools = [McpTool(self, *listed) for listed in await connection.open()]
                except BaseException as error:  # also when the caller was cancelled
                    await connection.close()
                    if not isinstance(error, ConnectError):
                        raise
                    raise self._lost(f"cannot connect to the MCP server '{self.name}': {error}") from error
                self._connection = connection
            return self._connection

    async def _call(self, tool: str, arguments: dict[str, Any]) -> ToolResult:
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, REQUEST_TIMEOUT

        _check_unicode(tool, arguments)
        connection = await self._connect()
        try:
            async with timeout(self.timeout + SLACK_SECONDS):
                answer = await connection.client.call_tool(tool, arguments, read_timeout_seconds=self.timeout)
        except TimeoutError:
            # The client's own limit did not end the call: the connection is stuck.
            await self._drop(connection)
            raise ToolTimeoutError(f"{tool} timed out after {self.timeout:g} seconds") from None
        except MCPError as error:
            if error.code == REQUEST_TIMEOUT:
                raise ToolTimeoutError(f"{tool} timed out after {self.timeout:g} seconds") from None
            if error.code == INVALID_PARAMS:
                raise ToolInputError(f"wrong arguments for {tool}: {error}") from None
            is_closed = error.code == CONNECTION_CLOSED and (self.url is not None or str(error) == _CLOSED)
            if not is_closed and not connection.is_over:
                raise McpToolError(str(error)) from error
            await self._drop(connection)
            raise self._lost(
                f"the MCP server '{self.name}' was lost while {tool} was running{connection.why()}"
            ) from error
        return as_result(answer)

    async def _drop(self, connection: Connection) -> None:
        if self._connection is connection:
            self._connection = None
        await connection.close()

    def _lost(self, details: str) -> EpisodeError:
        return EpisodeError(StopReason.TOOL_ERROR, f"MCP server '{self.name}'", details)


def _check_unicode(tool: str, arguments: Mapping[str, Any]) -> None:
    """Half a surrogate pair, which a JSON escape can be, would end the connection with the calls of all episodes."""
    try:
        json.dumps(arguments, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        raise ToolInputError(f"wrong arguments for {tool}: text that is not Unicode ({error})") from None


class McpTool(BaseTool):
    """A tool that runs on a server, with the server's own schema."""

    def __init__(self, server: McpServer, name: str, description: str, parameters: Mapping[str, Any]) -> None:
        self._server = server
        self.name = name
        # The server's limits come first: they tell the server to stop, and they count from when it is connected.
        self.policy = ToolPolicy(timeout=server.connect_timeout + server.timeout + 2 * SLACK_SECONDS)
        self.tool_schema: ToolSchema = {
            "type": "function",
            "function": {"name": name, "description": description, "parameters": dict(parameters)},
        }

    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        """Call the tool on the server."""
        return await self._server.call(self.name, args)


def as_result(answer: Any) -> ToolResult:
    """A server's answer as a tool result: its texts, its images, and the names of what it cannot show."""
    texts: list[str] = []
    images: list[bytes] = []
    for block in answer.content:
        if block.type == "text":
            texts.append(block.text)
        elif block.type == "image":
            images.append(base64.b64decode(block.data))
        elif block.type == "resource" and hasattr(block.resource, "text"):
            texts.append(block.resource.text)
        else:
            uri = getattr(block, "uri", None) or getattr(getattr(block, "resource", None), "uri", "")
            texts.append(f"[{block.type}{f' {uri}' if uri else ''}]")
    if not answer.content and answer.structured_content is not None:
        texts.append(json.dumps(answer.structured_content, ensure_ascii=False))
    text = "\n".join(texts)
    if answer.is_error:
        raise McpToolError(text or "the tool failed without saying why")
    return ToolResponse(text=text, images=tuple(images)), None, {}
