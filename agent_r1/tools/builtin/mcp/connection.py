"""One connection to an MCP server, opened and closed by one task, as the client's task groups require."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from agent_r1.errors import MissingExtraError, described

if TYPE_CHECKING:
    from agent_r1.tools.builtin.mcp.server import McpServer

CLOSE_SECONDS = 15.0
SLACK_SECONDS = 5.0
"""How much later our own limits end a call than the client's."""

ListedTool = tuple[str, str, Mapping[str, Any]]
"""A tool as the server lists it: name, description, and JSON schema of its parameters."""


class ConnectError(Exception):
    """A connection could not be opened."""


class Connection:
    """A connection to a server, held by a task of the servers' loop."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._ready: asyncio.Future[list[ListedTool]] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._reason = ""
        self._task = asyncio.create_task(self._hold())
        self.client: Any = None

    @property
    def is_over(self) -> bool:
        """Whether the connection's task has ended, or was asked to."""
        return self._task.done() or self._leave.is_set()

    def why(self) -> str:
        """What ended it, as the end of a sentence."""
        return f": {self._reason}" if self._reason else ""

    async def open(self) -> list[ListedTool]:
        """The server's tools; `ConnectError` when it does not answer in time."""
        done, _ = await asyncio.wait({self._ready}, timeout=self._server.connect_timeout)
        if not done:
            await self.close()
            raise ConnectError(f"no answer in {self._server.connect_timeout:g} seconds{self.why()}")
        return self._ready.result()

    async def close(self) -> None:
        """Disconnect, and wait until the server's process, if there is one, has ended."""
        self._leave.set()
        if not self._ready.done():
            self._task.cancel()
        await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)

    async def _hold(self) -> None:
        """Open the connection, keep it until `close`, and close it."""
        try:
            with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:
                try:
                    async with _client(self._server, stderr) as self.client:
                        self._ready.set_result(await _list_tools(self.client))
                        await self._leave.wait()
                except BaseException:
                    self._reason = _last_line(stderr)
                    raise
        except asyncio.CancelledError:
            if not self._ready.done():
                self._ready.cancel()
        except BaseException as error:  # whatever a transport raises, `open` must not wait any longer
            self._reason = "; ".join(filter(None, [_root_cause(error), self._reason]))
            if self._leave.is_set():
                self._ready.cancel()  # it is not awaited any more
            elif not self._ready.done():
                self._ready.set_exception(ConnectError(self._reason))


def import_client() -> None:
    """Import the MCP client, which takes a while the first time; `MissingExtraError` when it is not installed."""
    try:
        import mcp  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError("mcp", "mcp", "tools of MCP servers") from error
    # A traceback for every line that is not a message; `_warn_once` says what the line was.
    logging.getLogger("mcp.client.stdio").addFilter(_is_not_about_a_line)


def _is_not_about_a_line(record: logging.LogRecord) -> bool:
    return record.msg != "Failed to parse JSONRPC message from server"


def _warn_once(server: McpServer) -> Any:
    """A handler of a connection's messages that warns of the first line which is not a message, such as the output of a
    `print` in a tool."""
    has_warned = False

    async def handle(message: Any) -> None:
        nonlocal has_warned
        if isinstance(message, Exception) and not has_warned:
            has_warned = True
            reason = " ".join(described(message).split())
            warnings.warn(
                f"the MCP server '{server.name}' sends what is not a message and is ignored; does it print to its "
                f"standard output? ({reason:.300})",
                RuntimeWarning,
                stacklevel=2,
            )

    return handle


@asynccontextmanager
async def _client(server: McpServer, stderr: IO[str]) -> AsyncIterator[Any]:
    import httpx2
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client

    if server.url is None:
        command, *arguments = _bound_to_this_process(server.command)
        # Bytes that are not UTF-8 would end the client's reader, and every later call would time out.
        parameters = StdioServerParameters(
            command=command, args=arguments, env=server.env, encoding_error_handler="replace"
        )
        transport: Any = stdio_client(parameters, errlog=stderr)  # type: ignore[arg-type]
        async with Client(transport, message_handler=_warn_once(server)) as client:
            yield client
    else:
        # Reading may take as long as a call may; the call's own limit comes first.
        limits = httpx2.Timeout(server.connect_timeout, read=server.timeout + 2 * SLACK_SECONDS)
        async with (
            httpx2.AsyncClient(headers=server.headers, timeout=limits) as http,
            Client(streamable_http_client(server.url, http_client=http)) as client,
        ):
            yield client


def _bound_to_this_process(command: Sequence[str]) -> list[str]:
    """The command, changed so that on Linux the server dies with this process even when that is killed. Elsewhere a
    server notices it by the end of its input."""
    if not sys.platform.startswith("linux"):
        return list(command)
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name("child.py")), str(os.getpid()), *command]


async def _list_tools(client: Any) -> list[ListedTool]:
    tools: list[ListedTool] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        tools += [(tool.name, tool.description or "", tool.input_schema) for tool in page.tools]
        cursor = page.next_cursor
        if cursor is None:
            break
    counts = Counter(name for name, _, _ in tools)
    for name, count in counts.items():
        if count > 1:
            raise ConnectError(f"it lists {count} tools that are named '{name}', and a call cannot say which")
    return tools


def _root_cause(error: BaseException) -> str:
    """The message of the first exception in a group that is not a group itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__


def _last_line(stderr: IO[str]) -> str:
    """The last line a server wrote to its standard error: of a Python server that died, its exception."""
    stderr.seek(0)
    lines = stderr.read().strip().splitlines()
    return lines[-1].strip()[:500] if lines else ""
