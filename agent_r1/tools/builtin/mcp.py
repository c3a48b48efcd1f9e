"""Tools of MCP servers, through the official client: over stdio (a command) or streamable HTTP (an address).

    tools:
      mcp:
        files: {command: [npx, -y, "@modelcontextprotocol/server-filesystem", data]}
        shop: {url: "http://localhost:8000/mcp"}
    env:
      tools: ["mcp:files", "mcp:shop/price"]

All servers live on one event loop in a thread of their own, so that their tools can be called from any loop. There each
connection belongs to one task, which opens it and closes it: the client's task groups demand that.

What the tool reports as an error is an error the model reads. A server that is lost is not the policy's fault: calls in
flight end their episodes with `tool_error`, and the next call connects again. No call is ever sent twice.
"""

from __future__ import annotations

import asyncio
import atexit
import base64
import inspect
import json
import os
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

from agent_r1.constraints import Seconds
from agent_r1.errors import ConfigError, EpisodeError, MissingExtraError, UnknownNameError, did_you_mean
from agent_r1.registry import check_arguments
from agent_r1.tools.base import BaseTool, ToolInputError, ToolResponse, ToolResult, ToolTimeoutError
from agent_r1.tools.policy import ToolPolicy
from agent_r1.types import StopReason, ToolSchema

T = TypeVar("T")

_CLOSE_SECONDS = 15.0
_SLACK_SECONDS = 5.0


class McpToolError(RuntimeError):
    """The server's tool said that it failed; the message is for the model."""


class McpServer:
    """One server and its tools.

    Args:
        name: What the configuration calls it.
        command: Starts it, with its arguments; it speaks over its standard input and output.
        url: Where it answers, when it is not started here.
        env: Variables for the command. It inherits only the usual few, such as PATH and HOME.
        headers: Sent with every HTTP request.
        timeout: Seconds a call may take.
        connect_timeout: Seconds until the server must have answered for the first time.
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
        given = {"timeout": timeout, "connect_timeout": connect_timeout}
        check_arguments(McpServer, "", given, f"MCP server '{name}'")
        self.name = name
        self.command = tuple(command)
        self.url = url
        self.env = dict(env or {})
        self.headers = dict(headers or {})
        self.timeout = timeout
        self.connect_timeout = connect_timeout
        self._connection: _Connection | None = None
        self._opening = asyncio.Lock()
        self._tools: list[BaseTool] | None = None

    @property
    def settings(self) -> tuple[Any, ...]:
        """What makes two servers of one name the same."""
        return (self.command, self.url, self.env, self.headers, self.timeout, self.connect_timeout)

    async def connect(self) -> None:
        """Start or reach the server and ask what tools it has."""
        await _from_any_loop(self._live())

    def tools(self) -> list[BaseTool]:
        """The server's tools; connects first, and waits for it, when that was not done."""
        if self._tools is None:
            try:
                _on_server_loop(self._live()).result()
            except EpisodeError as error:
                raise ConfigError(error.details) from error
        return list(self._tools or ())

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """The answer of one of its tools."""
        return await _from_any_loop(self._call(tool, dict(arguments)))

    async def close(self) -> None:
        """Leave the server; one that was started here ends. A later call connects again."""
        await _from_any_loop(self._close())

    # What follows runs on the servers' loop.

    async def _live(self) -> _Connection:
        async with self._opening:
            if self._connection is None:
                _import_client()  # takes a while the first time, which is not the server's fault
                connection = _Connection(self)
                try:
                    self._tools = await connection.open()
                except BaseException as error:  # the one who called may have given up
                    await connection.close()
                    if not isinstance(error, _ConnectError):
                        raise
                    raise self._lost(f"cannot connect to the MCP server '{self.name}': {error}") from error
                self._connection = connection
            return self._connection

    async def _call(self, tool: str, arguments: dict[str, Any]) -> ToolResult:
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, REQUEST_TIMEOUT

        connection = await self._live()
        try:
            async with asyncio.timeout(self.timeout + _SLACK_SECONDS):
                answer = await connection.client.call_tool(tool, arguments, read_timeout_seconds=self.timeout)
        except TimeoutError:
            # The client's own limit did not end it: the connection is stuck.
            await self._drop(connection)
            raise ToolTimeoutError(f"{tool} timed out after {self.timeout:g} seconds") from None
        except MCPError as error:
            if error.code == REQUEST_TIMEOUT:
                raise ToolTimeoutError(f"{tool} timed out after {self.timeout:g} seconds") from None
            if error.code == INVALID_PARAMS:
                raise ToolInputError(f"wrong arguments for {tool}: {error}") from None
            if error.code != CONNECTION_CLOSED and not connection.is_over:
                raise McpToolError(str(error)) from error
            await self._drop(connection)
            raise self._lost(
                f"the MCP server '{self.name}' was lost while {tool} was running{connection.why()}"
            ) from error
        return _as_result(answer)

    async def _drop(self, connection: _Connection) -> None:
        if self._connection is connection:
            self._connection = None
        await connection.close()

    async def _close(self) -> None:
        async with self._opening:
            connection, self._connection = self._connection, None
            if connection is not None:
                await connection.close()

    def _lost(self, details: str) -> EpisodeError:
        return EpisodeError(StopReason.TOOL_ERROR, f"MCP server '{self.name}'", details)


class McpTool(BaseTool):
    """A tool that runs on a server, with the server's own schema."""

    def __init__(self, server: McpServer, name: str, description: str, parameters: Mapping[str, Any]) -> None:
        self._server = server
        self.name = name
        # The server's own limits come first: they tell the server to stop, and count from when it is there.
        self.policy = ToolPolicy(timeout=server.connect_timeout + server.timeout + 2 * _SLACK_SECONDS)
        self.tool_schema: ToolSchema = {
            "type": "function",
            "function": {"name": name, "description": description, "parameters": dict(parameters)},
        }

    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        """Ask the server."""
        return await self._server.call(self.name, args)


def _as_result(answer: Any) -> ToolResult:
    """What the model reads of an answer: its texts, its images, and the names of what it cannot show."""
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


class _ConnectError(Exception):
    """A connection could not be opened."""


class _Connection:
    """A connection in the hands of one task."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._ready: asyncio.Future[list[BaseTool]] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._reason = ""
        self._owner = asyncio.create_task(self._own())
        self.client: Any = None

    @property
    def is_over(self) -> bool:
        """Its task has ended, or was asked to."""
        return self._owner.done() or self._leave.is_set()

    def why(self) -> str:
        """What ended it, as the end of a sentence."""
        return f": {self._reason}" if self._reason else ""

    async def open(self) -> list[BaseTool]:
        """The server's tools, when it answers in time."""
        done, _ = await asyncio.wait({self._ready}, timeout=self._server.connect_timeout)
        if not done:
            raise _ConnectError(f"no answer in {self._server.connect_timeout:g} seconds")
        return self._ready.result()

    async def close(self) -> None:
        """Leave, and wait until the server's process, if there is one, has ended."""
        self._leave.set()
        if not self._ready.done():
            self._owner.cancel()
        await asyncio.wait({self._owner}, timeout=_CLOSE_SECONDS)

    async def _own(self) -> None:
        try:
            with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:
                try:
                    async with _client(self._server, complaints) as self.client:
                        self._ready.set_result(await _list_tools(self._server, self.client))
                        await self._leave.wait()
                except BaseException:
                    self._reason = _tail(complaints)
                    raise
        except asyncio.CancelledError:
            if not self._ready.done():
                self._ready.cancel()
        except BaseException as error:  # whatever a transport raises, those who wait must be told
            self._reason = "; ".join(filter(None, [_root(error), self._reason]))
            if not self._ready.done():
                self._ready.set_exception(_ConnectError(self._reason))


def _import_client() -> None:
    try:
        import mcp  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError("mcp", "mcp", "tools of MCP servers") from error


@asynccontextmanager
async def _client(server: McpServer, complaints: IO[str]) -> AsyncIterator[Any]:
    import httpx2
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client

    if server.url is None:
        command, *arguments = _bound_to_this_process(server.command)
        started = StdioServerParameters(command=command, args=arguments, env=server.env)
        async with Client(stdio_client(started, errlog=complaints)) as client:  # type: ignore[arg-type]
            yield client
    else:
        # Reading may take as long as a call may, and the call's own limit comes first.
        limits = httpx2.Timeout(server.connect_timeout, read=server.timeout + 2 * _SLACK_SECONDS)
        async with (
            httpx2.AsyncClient(headers=server.headers, timeout=limits) as http,
            Client(streamable_http_client(server.url, http_client=http)) as client,
        ):
            yield client


def _bound_to_this_process(command: Sequence[str]) -> list[str]:
    """The command, so that it dies with this process even when that is killed. Elsewhere than on Linux a server learns
    it from the end of its input."""
    if not sys.platform.startswith("linux"):
        return list(command)
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name("mcp_child.py")), str(os.getpid()), *command]


async def _list_tools(server: McpServer, client: Any) -> list[BaseTool]:
    found: list[BaseTool] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        found += [McpTool(server, tool.name, tool.description or "", tool.input_schema) for tool in page.tools]
        cursor = page.next_cursor
        if cursor is None:
            return found


def _root(error: BaseException) -> str:
    """The first real reason in a group of exceptions."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__


def _tail(complaints: IO[str]) -> str:
    """The last line a server wrote to its standard error: of a Python server that died, its exception."""
    complaints.seek(0)
    lines = complaints.read().strip().splitlines()
    return lines[-1].strip()[:500] if lines else ""


# The servers' loop


_loop: asyncio.AbstractEventLoop | None = None
_starting = threading.Lock()


def _on_server_loop(work: Coroutine[Any, Any, T]) -> Future[T]:
    global _loop
    with _starting:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="mcp-servers", daemon=True).start()
            atexit.register(close_servers)
    return asyncio.run_coroutine_threadsafe(work, _loop)


async def _from_any_loop(work: Coroutine[Any, Any, T]) -> T:
    return await asyncio.wrap_future(_on_server_loop(work))


# Servers by name


_servers: dict[str, McpServer] = {}


def make_server(name: str, given: Any) -> McpServer:
    """A server as the section `tools.mcp` of the configuration describes it."""
    known = [key for key in inspect.signature(McpServer).parameters if key != "name"]
    if not isinstance(given, Mapping):
        raise ConfigError(f"tools.mcp.{name} must have keys such as command or url, found {given!r}")
    unknown = [str(key) for key in given if key not in known]
    if unknown:
        raise ConfigError(f"unknown key 'tools.mcp.{name}.{unknown[0]}'. {did_you_mean(unknown[0], known)}")
    check_arguments(McpServer, f"tools.mcp.{name}.", given, f"MCP server '{name}'")
    return McpServer(name, **given)


def declare_servers(servers: Mapping[str, McpServer]) -> None:
    """Give servers names for `mcp:NAME`. One that is declared again with the same settings stays connected."""
    for name, server in servers.items():
        present = _servers.get(name)
        if present is None or present.settings != server.settings:
            if present is not None:
                _on_server_loop(present._close()).result(_CLOSE_SECONDS)
            _servers[name] = server


async def disconnect_servers() -> None:
    """Disconnect from all servers that have a name; those started here end. A later call connects again."""
    if _loop is not None:
        await asyncio.gather(*(server.close() for server in _servers.values()))


def close_servers() -> None:
    """`disconnect_servers`, from where there is no event loop."""
    if _loop is None:
        return
    closing = [_on_server_loop(server._close()) for server in _servers.values()]
    for done in closing:
        done.result(_CLOSE_SECONDS)


@BaseTool.families.register("mcp")
def tools_of(member: str) -> list[BaseTool]:
    """The tools that `SERVER` or `SERVER/tool` stands for."""
    name, slash, wanted = member.partition("/")
    if name not in _servers:
        raise UnknownNameError(
            f"unknown MCP server '{name}'. {did_you_mean(name, _servers)} The section `tools.mcp` of the "
            "configuration names them"
        )
    tools = _servers[name].tools()
    if not slash:
        return tools
    chosen = [tool for tool in tools if tool.name == wanted]
    if not chosen:
        known = did_you_mean(wanted, [tool.name for tool in tools])
        raise UnknownNameError(f"the MCP server '{name}' has no tool '{wanted}'. {known}")
    return chosen
