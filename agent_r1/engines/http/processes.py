"""Servers that a run starts itself: on this machine, on free ports, again when they end, until the run ends."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from agent_r1.config import Config
from agent_r1.engines.http import guard
from agent_r1.engines.http.commands import ServerCommand, find_python, server_command

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds between the end of a server and its next start: they double with every end in a row."""

_HOST = "127.0.0.1"
_LONGEST_LINE = 10_000


class StartedServer:
    """A server of this run: its process, and the processes that replace it."""

    def __init__(
        self,
        make_command: Callable[[int], ServerCommand],
        logs: Path,
        *,
        restarts: int,
        start_seconds: float,
        silent_seconds: float,
    ) -> None:
        """`make_command` gives the command of a server on a port. `logs` is the folder for what it prints. It may take
        `start_seconds` until it is well for the first time, and then be unwell for `silent_seconds`."""
        self._make_command = make_command
        self._logs = logs
        self._max_restarts = restarts
        self._start_seconds = start_seconds
        self._silent_seconds = silent_seconds
        self._guard: subprocess.Popen[bytes] | None = None
        self._num_starts = 0
        self._ends_in_a_row = 0
        self.problem: str | None = None
        """Why it does not answer and never will; None while it runs or will be started again."""
        self.start()

    def start(self) -> None:
        """Start a process, on a free port. A port that another program takes before it ends the process."""
        port = _free_port()
        self.url = f"http://{_HOST}:{port}"
        self._log = self._logs / f"{self._num_starts}.log"
        self._log.touch()
        self._num_starts += 1
        self._was_silent: float | None = None
        self._allowed_silence = self._start_seconds
        self.watch_from_now()
        command = self._make_command(port)
        self.begin_stop()
        self._guard = subprocess.Popen(
            [sys.executable, guard.__file__, str(self._log), *command.arguments],
            stdin=subprocess.PIPE,
            env=command.environment,
        )

    def end(self) -> str | None:
        """How its process ended, and the last line that it printed; None while it runs."""
        status = None if self._guard is None else self._guard.poll()
        if status is None:
            return None
        last = _last_line(self._log)
        last_line = f", its last line: {last:.300}" if last else ""
        how = f"ended with status {status}"
        if self._was_silent is not None:
            how = f"was not well for {self._was_silent:.0f} s and was ended"
        return f"the server at {self.url} {how}{last_line} (the rest is in {self._log})"

    @property
    def has_ended_before(self) -> bool:
        """Whether a process of this server ended by itself."""
        return self._num_starts > 1 or self.end() is not None

    def note_end(self, *, has_answered: bool, has_been_ready: bool) -> tuple[str, float | None]:
        """One line about an end, and the seconds until the next start; None: there is no further one.

        Ends count in a row until the server has answered a request. One that has never been ready is started once
        more: the port may have been taken, and whatever else is wrong with it will not change.
        """
        self._ends_in_a_row = 1 if has_answered else self._ends_in_a_row + 1
        allowed = self._max_restarts if has_been_ready else min(1, self._max_restarts)
        if self._ends_in_a_row > allowed:
            times = f"; it ended {self._ends_in_a_row} times in a row" if self._ends_in_a_row > 1 else ""
            self.problem = f"{self.end()}{times}"
            return f"{self.problem} and is not started again", None
        pause = min(FIRST_PAUSE * 2 ** (self._ends_in_a_row - 1), LONGEST_PAUSE)
        which = f"restart {self._ends_in_a_row} of {allowed}"
        return f"{self.end()}; it is started again ({which}) and gets no requests before it has the weights", pause

    def watch_from_now(self) -> None:
        """Start measuring now for how long it is unwell."""
        self._well_at = time.monotonic()

    def note_well(self) -> None:
        """Note that the server answers."""
        self._well_at = time.monotonic()
        self._allowed_silence = self._silent_seconds

    def end_if_silent(self) -> None:
        """End a process that runs and has not been well for too long, so that another can be started."""
        silent = time.monotonic() - self._well_at
        if self._was_silent is None and silent >= self._allowed_silence:
            self._was_silent = silent
            self.begin_stop()

    def begin_stop(self) -> None:
        """Have the guard end the process."""
        if self._guard is not None and self._guard.stdin is not None:
            with suppress(OSError):
                self._guard.stdin.close()

    def finish_stop(self) -> None:
        """Wait until it has ended."""
        assert self._guard is not None
        try:
            self._guard.wait(guard.GRACE_SECONDS + 5)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()


class StartedServers:
    """All servers that a run started."""

    def __init__(self, servers: list[StartedServer], folder: Path | None) -> None:
        self._servers = servers
        self._folder = folder

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses of the servers."""
        return tuple(server.url for server in self._servers)

    def at(self, url: str) -> StartedServer | None:
        """The server at an address; None when it was not started here."""
        return next((server for server in self._servers if server.url == url), None)

    def stop(self) -> None:
        """Stop all of them and remove their logs, unless one ended by itself."""
        has_failed = any(server.has_ended_before for server in self._servers)
        for server in self._servers:
            server.begin_stop()
        for server in self._servers:
            server.finish_stop()
        self._servers = []
        if self._folder is not None and not has_failed:
            shutil.rmtree(self._folder, ignore_errors=True)


def start_servers(config: Config, context_length: int, dtype: str) -> StartedServers:
    """Start `engine.servers.start` servers of the configured model; they answer some time later."""
    settings = config.engine.servers
    if not settings.start:
        return StartedServers([], None)
    folder = Path(tempfile.mkdtemp(prefix="agent-r1-servers-"))
    started = []
    for number in range(settings.start):

        def make_command(port: int, number: int = number) -> ServerCommand:
            return server_command(
                config.engine.name,
                config.model.path,
                python=find_python(settings.python),
                host=_HOST,
                port=port,
                context_length=context_length,
                dtype=dtype,
                devices=settings.devices[number] if settings.devices else None,
                arguments=settings.arguments,
                variables=settings.environment,
            )

        logs = folder / str(number)
        logs.mkdir()
        started.append(
            StartedServer(
                make_command,
                logs,
                restarts=settings.restarts,
                start_seconds=settings.start_timeout,
                silent_seconds=settings.lost_seconds,
            )
        )
    return StartedServers(started, folder)


def _last_line(log: Path) -> str:
    """The last line of a file that is not empty."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LONGEST_LINE))
        lines = file.read().decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((_HOST, 0))
        return int(listener.getsockname()[1])
