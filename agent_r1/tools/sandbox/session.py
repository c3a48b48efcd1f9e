"""`SandboxSession`: exchange requests and reports with a confined program, without blocking the event loop.

The program can be hostile: it may print forever, close its output, report nonsense or nothing. Each request has a
deadline; a session that misses it, or that prints too much, is ended with all its processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from agent_r1.errors import EpisodeError
from agent_r1.event_loop import timeout
from agent_r1.tools.sandbox.cgroup import remove_group
from agent_r1.types import StopReason

_CHUNK = 1 << 16
_MAX_REPORT_BYTES = 1 << 20
_GRACE_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxReply:
    """The reply to one request."""

    ended: Literal["answered", "timeout", "flood", "died"]
    """`answered`; `timeout`: the deadline passed; `flood`: it printed too much; `died`: the program ended by itself.
    After the last three the session is over."""
    report: Mapping[str, Any] = field(default_factory=dict)
    """The program's report, if it answered."""
    output: str = ""
    """What was printed, at most `max_bytes`."""
    num_bytes_cut: int = 0
    """How many bytes of output were left out."""
    exit_code: int | None = None
    """The exit code of a program that died, or minus the signal that killed it; None if that is not known."""


class Guard(Protocol):
    """The process that guards a session's program."""

    def poll(self) -> int | None:
        """None while it runs."""
        ...

    def kill(self) -> None:
        """Kill it with all that it started."""
        ...


@dataclass(frozen=True, slots=True)
class OwnGuard:
    """A guard that is a child of this process, and leads a process group."""

    process: subprocess.Popen[bytes]

    def poll(self) -> int | None:
        """The exit code of the guard; None while it runs."""
        return self.process.poll()

    def kill(self) -> None:
        """Kill the guard's process group: the session and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


class SandboxSession:
    """One confined program. It takes one request at a time."""

    def __init__(
        self,
        *,
        guard: Guard,
        requests: int,
        reports: int,
        output: int,
        folder: str | None,
        group: Path | None = None,
    ) -> None:
        self._guard = guard
        self._reports = reports
        self._output = output
        self._remove_folder = weakref.finalize(self, _remove, folder)
        self._remove_group = weakref.finalize(self, remove_group, group)
        self._state = _ReportState()
        # The guard inside kills everything when this pipe closes, also when the session is garbage-collected.
        self._requests = requests
        self._let_go = weakref.finalize(self, os.close, requests)
        self._forget = weakref.finalize(self, _close_all, (reports, output))

    @property
    def is_over(self) -> bool:
        """No more requests can be sent."""
        return not self._let_go.alive

    async def ask(
        self, request: Mapping[str, Any], *, seconds: float, max_bytes: int = 1 << 16, flood_bytes: int = 1 << 24
    ) -> SandboxReply:
        """Send one request, as a Python literal on one line, and wait for its report.

        Output beyond `max_bytes` is dropped; beyond `flood_bytes` the program is stopped.
        """
        if self.is_over:
            raise EpisodeError(StopReason.TOOL_ERROR, "a sandbox", "the session is over")
        exchange = _Exchange(self._output, self._reports, self._requests, self._state, max_bytes, flood_bytes)
        ended: Literal["answered", "timeout", "flood", "died"] = "timeout"
        try:
            with contextlib.suppress(TimeoutError):
                ended = await exchange.run(ascii(dict(request)).encode() + b"\n", seconds)
        finally:
            if ended != "answered":
                self._let_go()
        if exchange.failure is not None:
            raise EpisodeError(StopReason.TOOL_ERROR, "a sandbox", exchange.failure)
        return SandboxReply(
            ended=ended,
            report=exchange.report,
            output=bytes(exchange.kept).decode(errors="replace"),
            num_bytes_cut=exchange.num_bytes - len(exchange.kept),
            exit_code=exchange.exit_code,
        )

    async def close(self) -> None:
        """Kill the program and everything it started, and wait until that is done."""
        self._let_go()
        if not self._forget.alive:
            return  # it is closed; its descriptors may be another's by now
        deadline = asyncio.get_running_loop().time() + _GRACE_SECONDS
        pause = 0.001
        while self._guard.poll() is None:
            self._discard()
            if asyncio.get_running_loop().time() > deadline:
                self._guard.kill()
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.02)
        self._forget()
        await asyncio.to_thread(self._remove_group)
        await asyncio.to_thread(self._remove_folder)

    def _discard(self) -> None:
        """Read what is still in the pipe of reports, so that the guard can write its last one."""
        with contextlib.suppress(OSError):
            os.read(self._reports, _CHUNK)


@dataclass(kw_only=True, slots=True)
class _ReportState:
    """What is kept between requests."""

    is_ready: bool = False
    """The program runs: from here on reports may be forged by it."""
    unread: bytes = b""
    """The beginning of a line of reports."""


class _Exchange:
    """One request and its reply, collected by readers of the event loop."""

    def __init__(
        self, output: int, reports: int, requests: int, state: _ReportState, max_bytes: int, flood_bytes: int
    ) -> None:
        self.kept = bytearray()
        self.num_bytes = 0
        self.report: Mapping[str, Any] = {}
        self.exit_code: int | None = None
        self.failure: str | None = None
        self._state = state
        self._output, self._reports, self._requests = output, reports, requests
        self._max_bytes, self._flood_bytes = max_bytes, flood_bytes
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[Literal["answered", "flood", "died"]] = self._loop.create_future()

    async def run(self, request: bytes, seconds: float) -> Literal["answered", "flood", "died"]:
        self._to_send = memoryview(request)
        self._loop.add_reader(self._output, self._read_output)
        self._loop.add_reader(self._reports, self._read_reports)
        self._loop.add_writer(self._requests, self._send)
        try:
            async with timeout(seconds):
                return await self._end
        finally:
            self._loop.remove_reader(self._output)
            self._loop.remove_reader(self._reports)
            self._loop.remove_writer(self._requests)
            # What was printed before the report may still be in the pipe.
            while self._read_output():
                pass

    def _send(self) -> None:
        try:
            self._to_send = self._to_send[os.write(self._requests, self._to_send) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._to_send = self._to_send[:0]  # the program died; the reports say how
        if not self._to_send:
            self._loop.remove_writer(self._requests)

    def _read_output(self) -> bool:
        """Read one chunk; False when there is none, or too much was read already."""
        if self.num_bytes > self._flood_bytes:
            self._finish("flood")
            return False
        try:
            data = os.read(self._output, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._output)
            return False
        self.num_bytes += len(data)
        self.kept += data[: max(0, self._max_bytes - len(self.kept))]
        return True

    def _read_reports(self) -> None:
        try:
            data = os.read(self._reports, _CHUNK)
        except BlockingIOError:
            return
        *lines, self._state.unread = (self._state.unread + data).split(b"\n")
        for line in lines:
            self._handle_report(line)
        if not data and not self._state.is_ready:
            self.failure = self.failure or "it ended before it began"
        if not data or len(self._state.unread) > _MAX_REPORT_BYTES:
            self._finish("died")

    def _handle_report(self, line: bytes) -> None:
        message = parse_report(line)
        if message is None:
            self._finish("died")
        elif not self._state.is_ready:
            self._state.is_ready = "ready" in message
            if not self._state.is_ready:
                self.failure = str(message.get("failed", "it ended before it began"))
                self._finish("died")
        elif "exit" in message:
            self.exit_code = _exit_code(message["exit"])
            self._finish("died")
        elif "gone" in message:
            self._finish("died")
        elif not self._end.done():
            self.report = message
            self._finish("answered")

    def _finish(self, how: Literal["answered", "flood", "died"]) -> None:
        if not self._end.done():
            self._end.set_result(how)


def parse_report(line: bytes) -> dict[str, Any] | None:
    """The object in a line of reports, or None for anything else: the program may write anything there.

    >>> parse_report(b'{"shown": "4"}'), parse_report(b"[" * 100_000), parse_report(b'{"a": NaN}')
    ({'shown': '4'}, None, None)
    """
    try:
        message = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _exit_code(value: Any) -> int | None:
    """An exit code, or minus the number of a signal; None for any other value."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and -signal.NSIG < value < 256 else None


def _close_all(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _remove(folder: str | None) -> None:
    """Remove a folder, also one whose permissions the program has removed."""
    if folder is None:
        return
    for path in [Path(folder), *Path(folder).rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):
                path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
