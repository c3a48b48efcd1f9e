"""`ForkServer`: sessions that start with modules already imported.

A new interpreter that imports sympy takes a second or two. A fork server imports it once; every session is then a fork
of it, confined like any other, that shares the imported modules' memory until it changes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import select
import socket
import subprocess
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_r1.errors import EpisodeError
from agent_r1.tools.sandbox.launch import (
    CHILD,
    Channels,
    fixed_settings,
    interpreter_command,
    open_channels,
    session_settings,
)
from agent_r1.tools.sandbox.layers import Layers, SandboxLimits
from agent_r1.tools.sandbox.session import SandboxSession
from agent_r1.types import StopReason

_SERVER = (Path(__file__).parent / "fork_child.py").read_text()
_START_SECONDS = 60.0
_PAUSE_SECONDS = 0.005
_KILL_SECONDS = 10.0
"""How long the server may take to kill a session; then it is killed itself, with all of them."""
_NOT_NOW = (errno.EAGAIN, errno.ETOOMANYREFS, errno.ENOBUFS)

_servers: dict[str, ForkServer] = {}


async def open_forked_session(
    program: str, layers: Layers, limits: SandboxLimits, packages: Sequence[str], preload: str
) -> SandboxSession:
    """A session of `program` whose interpreter has run `preload`; the server is started when there is none."""
    fixed = fixed_settings(program, layers, limits, packages)
    key = ascii((fixed, preload, os.getpid()))
    for is_last in (False, True):
        server = _servers.get(key)
        if server is None or server.is_over:
            server = _servers[key] = ForkServer(fixed, preload)
        try:
            await server.wait_until_ready()
            return await server.start(layers, limits)
        except ConnectionError as error:  # it was killed
            server.close()
            if is_last:
                raise EpisodeError(StopReason.TOOL_ERROR, "starting a sandbox", f"its fork server: {error}") from error
    raise AssertionError("one of two attempts returns or raises")


class ForkServer:
    """One process that forks sessions. It ends with this process, or at `close`; its sessions end with it."""

    def __init__(self, fixed: Mapping[str, Any], preload: str) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self._numbers = itertools.count()
        self._is_ready = False
        self._killing: dict[int, float] = {}
        settings = {"fixed": fixed, "preload": preload, "control": theirs.fileno(), "child": CHILD}
        with theirs:
            self._process = subprocess.Popen(
                interpreter_command(_SERVER, ascii(settings)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={},
                cwd="/",
                start_new_session=True,
            )
        self._end = weakref.finalize(self, _end, self._process, self._control)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_over(self) -> bool:
        """Whether no more sessions can be started."""
        return not self._end.alive or self._process.poll() is not None

    async def wait_until_ready(self) -> None:
        """Wait until the preload has run. Raises `EpisodeError` when it raised."""
        deadline = asyncio.get_running_loop().time() + _START_SECONDS
        while not self._is_ready:
            try:
                message = self._control.recv(1 << 12)
            except BlockingIOError:
                if asyncio.get_running_loop().time() > deadline:
                    self.close()
                    raise EpisodeError(
                        StopReason.TOOL_ERROR, "a sandbox", f"its fork server needs more than {_START_SECONDS:g} s"
                    ) from None
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if not message:
                raise ConnectionError("it ended before it began")
            if message != b"ready":
                self.close()
                raise EpisodeError(StopReason.TOOL_ERROR, "a sandbox", message.decode(errors="replace"))
            self._is_ready = True

    async def start(self, layers: Layers, limits: SandboxLimits) -> SandboxSession:
        """Fork a session."""
        channels = open_channels(layers, limits)
        number = next(self._numbers)
        request = {"number": number, "settings": session_settings(layers, channels)}
        theirs = (channels.requests[0], channels.output[0], channels.reports[0], channels.group_fd)
        try:
            await self._send(request, [descriptor for descriptor in theirs if descriptor is not None])
        except BaseException:
            channels.discard()
            raise
        finally:
            channels.close_theirs()
        return _session(self, number, channels)

    def kill(self, number: int) -> None:
        """Kill a session's guard. A server that does not do it, since it was stopped, is ended."""
        now = time.monotonic()
        if number not in self._killing:  # sessions that ended are not asked for again
            self._killing = {other: begun for other, begun in self._killing.items() if now - begun < 2 * _KILL_SECONDS}
        if now - self._killing.setdefault(number, now) > _KILL_SECONDS:
            self.close()
        with contextlib.suppress(OSError):
            self._control.send(ascii({"kill": number}).encode())

    def close(self) -> None:
        """End the server and its sessions."""
        self._end()

    async def _send(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        message = ascii(dict(request)).encode()
        while True:
            try:
                socket.send_fds(self._control, [message], descriptors)
                return
            except OSError as error:
                if error.errno not in _NOT_NOW:
                    raise ConnectionError(str(error)) from error
            await asyncio.sleep(_PAUSE_SECONDS)


@dataclass(frozen=True, slots=True)
class _ForkedGuard:
    """A guard that a fork server started: it has ended when no process holds the other end of its reports."""

    server: ForkServer
    number: int
    reports: int

    def poll(self) -> int | None:
        """0 when it has ended."""
        ends = select.poll()
        ends.register(self.reports, 0)
        return 0 if any(event & select.POLLHUP for _, event in ends.poll(0)) else None

    def kill(self) -> None:
        """Have it killed by its parent, which knows that its process id is not another's by now."""
        self.server.kill(self.number)


def _session(server: ForkServer, number: int, channels: Channels) -> SandboxSession:
    reports = channels.reports[1]
    return SandboxSession(
        guard=_ForkedGuard(server, number, reports),
        requests=channels.requests[1],
        reports=reports,
        output=channels.output[1],
        folder=channels.folder,
        group=channels.group,
    )


def _end(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    control.close()
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait()
