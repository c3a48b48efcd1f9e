"""`ServerPool`: gives requests to servers, watches servers, and brings back those that failed.

Requests beyond `concurrency` per server wait here, in order. A server that fails is asked again with growing pauses; it
gets no request before it has the current weights and has passed the probe. One that the run started and whose process
ended is started again first.
"""

from __future__ import annotations

import asyncio
import random
import time
import warnings
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from agent_r1.engines.http.client import ServerError
from agent_r1.engines.http.processes import StartedServer
from agent_r1.engines.http.routing import PrefixRouter
from agent_r1.engines.http.server import Published, Server
from agent_r1.errors import AgentR1Error, EngineLostError

CHECK_SECONDS = 5.0
"""How often a server is checked that has answered nothing since the last check."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds between attempts to bring a server back: they double."""

END_SECONDS = 2.0
"""How long the process of a server that was lost may take to end; later it counts as one that runs."""

COUNTS = ("requests", "tokens", "failures", "refused", "updates", "restarts")
"""What is counted for each server."""


class ServerPool:
    """All servers of an engine."""

    def __init__(self, servers: Sequence[Server], *, concurrency: int, lost_seconds: float) -> None:
        self.servers = list(servers)
        for server in self.servers:
            if server.process is None:  # else it is reported when it is known whether the process ended
                server.on_down = _warn_of_failure
        self._concurrency = concurrency
        self._lost_seconds = lost_seconds
        self._router = PrefixRouter()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._watchers: list[asyncio.Task[None]] = []
        self._weights: Published | None = None
        self._is_publishing = False
        self._lost_since: float | None = None
        self._queue = _TimeAverage()

    # --- requests ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def server_for(self, tokens: Sequence[int]) -> AsyncIterator[Server]:
        """A ready server with a free slot, for a request with these tokens. Raises `EngineLostError` when there is no
        server at all for too long."""
        server = await self._acquire(tokens)
        server.in_flight += 1
        try:
            yield server
        finally:
            server.in_flight -= 1
            self._wake()

    def note_computed(self, server: Server, tokens: Sequence[int]) -> None:
        """A server has these tokens in its prefix cache."""
        self._router.note(tokens, self.servers.index(server))

    async def _acquire(self, tokens: Sequence[int]) -> Server:
        server = None if self._waiting else self._choose(tokens)
        self._queue.add(1)
        try:
            while server is None:
                await self._wait_for_change()
                server = self._choose(tokens)
        finally:
            self._queue.add(-1)
        return server

    def _choose(self, tokens: Sequence[int]) -> Server | None:
        load = {
            number: server.in_flight
            for number, server in enumerate(self.servers)
            if server.state == "ready" and server.in_flight < self._concurrency
        }
        slack = max(8, self._concurrency // 8)
        return self.servers[self._router.choose(tokens, load, slack=slack)] if load else None

    async def _wait_for_change(self) -> None:
        self._raise_if_lost()
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await asyncio.wait({future}, timeout=min(1.0, self._lost_seconds))
        finally:
            if not future.done():
                self._waiting.remove(future)
                future.cancel()

    def _wake(self) -> None:
        """Let waiting requests look again, as many as there may be free slots; each wakes in its order."""
        free = sum(max(0, self._concurrency - server.in_flight) for server in self.servers if server.state == "ready")
        while self._waiting and free > 0:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                free -= 1

    def _raise_if_lost(self) -> None:
        """Raise when nothing has been ready for too long."""
        if self._is_publishing or any(server.state in ("ready", "updating") for server in self.servers):
            self._lost_since = None
            return
        now = time.monotonic()
        self._lost_since = self._lost_since or now
        is_hopeless = all(server.state == "refused" or _problem(server) for server in self.servers)
        if is_hopeless or now - self._lost_since >= self._lost_seconds:
            raise EngineLostError(self._explain())

    def _explain(self) -> str:
        """Why no server can be used, in one line."""
        reasons = "; ".join(dict.fromkeys(_problem(server) or server.reason for server in self.servers))
        return f"no server of the engine can be used ({len(self.servers)} tried): {reasons}"

    # --- weights -----------------------------------------------------------------------------------------------------

    async def publish(self, weights: Published) -> None:
        """Give all servers new weights; returns when every server has them or has failed, and one is ready.

        Raises `EngineLostError` when every server was refused, or none is ready for too long.
        """
        self._weights = weights
        self._is_publishing = True
        try:
            await asyncio.gather(*(self._synchronise(server) for server in self.servers))
        finally:
            self._is_publishing = False
        self._router.forget()
        self._start_watching()
        self._wake()
        while not any(server.state == "ready" for server in self.servers):
            await self._wait_for_change()

    def _current(self) -> Published:
        assert self._weights is not None
        return self._weights

    async def _synchronise(self, server: Server) -> None:
        """Bring a server to the current weights; a failure is reported once and leaves it out."""
        before = server.reason
        try:
            await server.synchronise(self._current)
        except ServerError as error:
            has_ended = server.process is not None and server.process.end() is not None
            if server.reason != before and not server.is_starting and not has_ended:
                warn = _warn if server.state == "refused" else _warn_of_failure
                warn(str(error))
        else:
            self._wake()

    def _start_watching(self) -> None:
        if not self._watchers:
            self._watchers = [asyncio.create_task(self._watch(server)) for server in self.servers]

    async def _watch(self, server: Server) -> None:
        """Check a server now and then; bring it back when it is down."""
        pause, seen = FIRST_PAUSE, -1
        if server.process is not None:
            server.process.watch_from_now()
        while _problem(server) is None:
            if server.state == "ready":
                pause = FIRST_PAUSE
                with suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_SECONDS * random.uniform(0.8, 1.2)):
                        await server.down.wait()
            if server.state != "ready":
                longest = CHECK_SECONDS if server.is_starting else LONGEST_PAUSE
                await asyncio.sleep(min(pause, longest) * random.uniform(0.8, 1.2))
            if server.process is not None and server.state in ("ready", "refused"):
                server.process.note_well()
            if self._is_publishing or self._weights is None or server.state in ("refused", "updating"):
                continue
            if server.state == "ready":
                if server.counts["tokens"] == seen:
                    await self._check(server)
                seen = server.counts["tokens"]
            elif await self._has_process(server):
                with suppress(ServerError):
                    await server.check_health()
                    await self._synchronise(server)
                    self._router.forget(self.servers.index(server))
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                pause = FIRST_PAUSE

    async def _check(self, server: Server) -> None:
        try:
            await server.check_health()
        except ServerError as error:
            server.take_down(str(error))

    async def _has_process(self, server: Server) -> bool:
        """Whether there is something to ask. A server of this run whose process ended is started again after a pause,
        unless that happened too often."""
        process = server.process
        if process is None:
            return True
        if server.down.is_set():
            server.down.clear()
            await _wait_for_end(process)
            if process.end() is None:
                _warn_of_failure(server.reason)
        if process.end() is None:
            process.end_if_silent()
            return True
        line, pause = process.note_end(has_answered=server.has_answered, has_been_ready=server.has_been_ready)
        server.is_starting = True  # that it does not answer is no further news
        _warn(line)
        if pause is not None:
            await asyncio.sleep(pause)
            try:
                await server.start_again()
                self._lost_since = None  # the new process has its time to start
            except (OSError, AgentR1Error) as error:
                process.problem = f"{line}, which failed: {error}"
        return False

    # --- the end -----------------------------------------------------------------------------------------------------

    def read_metrics(self) -> dict[str, float]:
        """Counts of each server and the mean number of waiting requests since the last call."""
        metrics = {
            "perf/engine_queue": self._queue.read(),
            "servers/ready": float(sum(server.state == "ready" for server in self.servers)),
        }
        for number, server in enumerate(self.servers):
            counted = {name: float(server.counts[name]) for name in COUNTS}
            metrics |= {f"servers/{number}/{name}": count for name, count in counted.items()}
            metrics[f"servers/{number}/probe_difference"] = server.difference
            server.counts.clear()
        return metrics

    async def close(self) -> None:
        """Stop watching the servers."""
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        self._watchers.clear()


class _TimeAverage:
    """The mean over time of a number that changes in steps."""

    def __init__(self) -> None:
        self._value = 0
        self._area = 0.0
        self._since = self._start = time.monotonic()

    def add(self, change: int) -> None:
        """Change the number by this much."""
        now = time.monotonic()
        self._area += self._value * (now - self._since)
        self._since = now
        self._value += change

    def read(self) -> float:
        """The mean since the last reading."""
        self.add(0)
        mean = self._area / max(self._since - self._start, 1e-9)
        self._area, self._start = 0.0, self._since
        return mean


def _problem(server: Server) -> str | None:
    """Why a server will never answer again."""
    return None if server.process is None else server.process.problem


async def _wait_for_end(process: StartedServer) -> None:
    """Wait a little for the end of a process: its connections are lost before it."""
    end = time.monotonic() + END_SECONDS
    while process.end() is None and time.monotonic() < end:
        await asyncio.sleep(0.05)


def _warn_of_failure(reason: str) -> None:
    _warn(f"{reason}; the server gets no requests until it is well")


def _warn(message: str) -> None:
    """Warn; where warnings are errors, the task that brings servers back must not end."""
    with suppress(RuntimeWarning):
        warnings.warn(message, RuntimeWarning, stacklevel=3)
