"""Servers that a run starts itself: on this machine, on free ports, stopped with the run."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent_r1.config import Config
from agent_r1.engines.http import guard
from agent_r1.engines.http.commands import ServerCommand, find_python, server_command

_HOST = "127.0.0.1"


@dataclass(frozen=True, kw_only=True, slots=True)
class StartedServer:
    """A server process."""

    url: str
    command: ServerCommand
    log: Path
    """What it prints."""
    guard: subprocess.Popen[bytes]
    """Ends it when this process ends."""

    def problem(self) -> str | None:
        """What is known about its end; None while it runs."""
        status = self.guard.poll()
        if status is None:
            return None
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        said = f", its last line: {lines[-1]:.300}" if lines else ""
        return f"the server at {self.url} ended with status {status}{said} (the rest is in {self.log})"


class StartedServers:
    """All servers that a run started."""

    def __init__(self, servers: list[StartedServer], folder: Path | None) -> None:
        self._servers = servers
        self._folder = folder

    @property
    def urls(self) -> tuple[str, ...]:
        """Their addresses."""
        return tuple(server.url for server in self._servers)

    def problem(self, url: str) -> str | None:
        """Why a server of this address will never answer; None for one that runs, or was not started here."""
        return next((server.problem() for server in self._servers if server.url == url), None)

    def stop(self) -> None:
        """Stop all of them and remove their logs, unless one ended by itself."""
        has_failed = any(server.problem() is not None for server in self._servers)
        for server in self._servers:
            if server.guard.stdin is not None:
                with suppress(OSError):
                    server.guard.stdin.close()
        for server in self._servers:
            try:
                server.guard.wait(guard.GRACE_SECONDS + 5)
            except subprocess.TimeoutExpired:
                server.guard.kill()
                server.guard.wait()
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
        port = _free_port()
        command = server_command(
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
        log = folder / f"{number}.log"
        log.touch()
        process = subprocess.Popen(
            [sys.executable, guard.__file__, str(log), *command.arguments],
            stdin=subprocess.PIPE,
            env=command.environment,
        )
        started.append(StartedServer(url=f"http://{_HOST}:{port}", command=command, log=log, guard=process))
    return StartedServers(started, folder)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((_HOST, 0))
        return int(listener.getsockname()[1])
