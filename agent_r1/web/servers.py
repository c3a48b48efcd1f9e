"""Starting and stopping HTTP servers: in the foreground until a signal, or inside a running event loop."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any

from agent_r1.errors import ConfigError, MissingExtraError
from agent_r1.web import overdue
from agent_r1.web.heads import with_limited_heads
from agent_r1.web.overdue import HeadDeadline


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on an address; port 0 takes a free one. `ConfigError` when the address is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        option = "--port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "--host"
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; choose another {option}") from error
    listener.listen(1024)
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL of a server on this socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve_forever(
    app: Any, listener: socket.socket, announce: Callable[[str], None], *, shutdown_seconds: int = 5
) -> None:
    """Serve an ASGI application until SIGINT or SIGTERM. `announce` is called with the URL: clients can connect.

    Running requests have `shutdown_seconds` to finish; then they are cancelled.
    """
    server = _make_server(app, shutdown_seconds)
    announce(address_of(listener))
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


@asynccontextmanager
async def running_server(app: Any, listener: socket.socket, *, shutdown_seconds: int = 5) -> AsyncIterator[str]:
    """A server on the running event loop, for the time of the block; gives its URL. Signals stay with the program."""
    server = _make_server(app, shutdown_seconds)
    server.capture_signals = nullcontext
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started and not task.done():
            await asyncio.sleep(0.01)
        if task.done():
            task.result()
            raise ConfigError(f"the server at {address_of(listener)} ended at its start")
        yield address_of(listener)
    finally:
        server.should_exit = True
        await task


def _make_server(app: Any, shutdown_seconds: int) -> Any:
    """A server with limits for the head of a request, in time and size, which uvicorn has not."""
    uvicorn = _uvicorn()
    config = _config(uvicorn, app, shutdown_seconds)
    config.load()
    config.http_protocol_class = with_limited_heads(config.http_protocol_class)
    server = uvicorn.Server(config)
    deadline, tick = HeadDeadline(overdue.HEAD_SECONDS), server.on_tick

    async def on_tick(counter: int) -> bool:
        if counter % overdue.TICKS == 0:
            deadline.close_overdue(tuple(server.server_state.connections), time.monotonic())
        return bool(await tick(counter))

    server.on_tick = on_tick
    return server


def _config(uvicorn: Any, app: Any, shutdown_seconds: int) -> Any:
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="on",
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=shutdown_seconds,
    )


def _uvicorn() -> Any:
    try:
        import uvicorn
    except ImportError as missing:
        raise MissingExtraError(str(missing.name), "serve", "a server") from missing
    return uvicorn
