"""`WorkerPool`: run calls in processes that are killed at their deadline.

    pool = WorkerPool(size=4)
    await pool.call(reward_fn.score, task, episode, timeout=10)

A worker is a new interpreter in its own session. It takes one call at a time and is reused, so imports are paid once.
At the deadline, when the waiting task is cancelled, or when a call leaves processes behind, the whole process group
gets SIGKILL and a new worker is started at once. When this process ends, in whichever way, the kernel kills the workers
too.

It is not a sandbox. A worker has this user's rights, files, network and environment variables, secrets included. A call
that is killed at its deadline hides children in sessions of their own (`setsid`) from the kill.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_r1.errors import AgentR1Error, EpisodeError
from agent_r1.event_loop import timeout as within
from agent_r1.tools.exit_status import signal_name
from agent_r1.tools.workers.child import HEADER, read_reply
from agent_r1.tools.workers.function_ref import FunctionRef
from agent_r1.types import StopReason

START_SECONDS = 60.0
MAX_RESULT_BYTES = 32 * 1024 * 1024
_START = "import sys; from agent_r1.tools.workers.child import serve; serve(*map(int, sys.argv[1:]))"


class WorkerTimeoutError(AgentR1Error, TimeoutError):
    """The call was killed at its deadline."""


class WorkerDiedError(AgentR1Error, RuntimeError):
    """The worker process ended during the call."""


class WorkerRaisedError(AgentR1Error, RuntimeError):
    """The function raised. The message is that of its exception; its traceback is a note."""


class WorkerPool:
    """Up to `size` worker processes, started when they are needed."""

    def __init__(
        self, size: int | None = None, *, max_result_bytes: int = MAX_RESULT_BYTES, memory_bytes: int = 0
    ) -> None:
        self.size = size or os.cpu_count() or 1
        self._limits = (max_result_bytes, memory_bytes)
        self._slots = asyncio.Semaphore(self.size)
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._is_closed = False
        self._cleanup = weakref.finalize(self, _kill_all, self._all)

    async def call(self, function: Callable[..., Any] | FunctionRef, *args: Any, timeout: float) -> Any:
        """The result of `function(*args)` in a worker, as plain data; a coroutine function is awaited there.

        `timeout` counts from when a worker has received the call. Raises `WorkerTimeoutError`, `WorkerDiedError` or
        `WorkerRaisedError`, `ConfigError` for a function that cannot be found by name, and `EpisodeError` when its file
        was changed since it was imported here: that is no mistake of a tool, which a model could read.
        """
        reference = function if isinstance(function, FunctionRef) else FunctionRef.of(function)
        try:
            request = pickle.dumps((reference, pickle.dumps(args, protocol=5)), protocol=5)
        except Exception as error:
            raise TypeError(f"the arguments of {reference} cannot be sent to a worker process: {error}") from error
        async with self._slots:
            if self._is_closed:
                raise RuntimeError("the worker pool is closed")
            worker = self._take()
            try:
                reply = await self._ask(worker, request, reference, timeout)
            except BaseException:
                self._discard(worker)
                raise
            if reply[-1] or reply[0] == "changed":
                self._discard(worker)
            else:
                self._idle.append(worker)
        if reply[0] == "changed":
            raise EpisodeError(StopReason.FLOW_ERROR, f"worker process of {reference}", reply[1])
        if reply[0] == "raised":
            raised = WorkerRaisedError(reply[1])
            raised.add_note(f"In the worker process:\n{reply[2]}")
            raise raised
        return reply[1]

    async def close(self) -> None:
        """Kill every worker; calls under way fail with `WorkerDiedError`."""
        self._is_closed = True
        self._cleanup.detach()
        workers = list(self._all)
        for worker in workers:
            worker.kill()
        for worker in self._idle:
            worker.close()
        self._idle.clear()
        while any(worker.process.poll() is None for worker in workers):
            await asyncio.sleep(0.005)
        self._all.clear()

    def pids(self) -> list[int]:
        """The process ids of the running workers."""
        return sorted(worker.process.pid for worker in self._all if worker.process.returncode is None)

    def _take(self) -> _Worker:
        """An idle worker that is alive, or a new one."""
        while self._idle:
            worker = self._idle.pop()
            if not worker.is_dead():
                return worker
            worker.close()
            self._all.discard(worker)
        return self._start()

    def _start(self) -> _Worker:
        worker = _Worker(*self._limits)
        self._all.add(worker)
        return worker

    def _discard(self, worker: _Worker) -> None:
        """Kill a worker and start its replacement."""
        worker.kill()
        worker.close()
        # Reaping waits until the kernel has freed the worker's memory, which may take long.
        threading.Thread(target=worker.process.wait, daemon=True).start()
        self._all.discard(worker)
        if not self._is_closed:
            with suppress(OSError):  # too many processes or open files: the next call tries again, and says so
                self._idle.insert(0, self._start())

    async def _ask(self, worker: _Worker, request: bytes, reference: FunctionRef, timeout: float) -> tuple[Any, ...]:
        await worker.ready()
        try:
            async with within(timeout) as deadline:
                reply = await worker.ask(request)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise WorkerTimeoutError(f"{reference} took longer than {timeout:g} s and was killed") from None
        except (ConnectionError, EOFError):
            worker.kill()
            raise WorkerDiedError(f"the worker process of {reference} {await worker.exit_reason()}") from None
        try:
            return read_reply(reply)
        except Exception as error:
            raise WorkerDiedError(f"the worker process of {reference} sent a reply that cannot be read") from error


class _Worker:
    """One worker process and the connection to it."""

    def __init__(self, max_result_bytes: int, memory_bytes: int) -> None:
        self._max_bytes = max_result_bytes
        self._connection, theirs = socket.socketpair()
        self._lifeline, their_lifeline = socket.socketpair()
        self._is_ready = False
        fds = (theirs.fileno(), their_lifeline.fileno())
        with theirs, their_lifeline:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START, *map(str, (*fds, max_result_bytes, memory_bytes))],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
            )
        self._connection.setblocking(False)

    async def ready(self) -> None:
        """Wait until it has started."""
        if self._is_ready:
            return
        try:
            async with within(START_SECONDS):
                await self._receive(HEADER.size)
        except (TimeoutError, ConnectionError, EOFError) as error:
            raise WorkerDiedError(f"a worker process could not start: it {await self.exit_reason()}") from error
        self._is_ready = True

    async def ask(self, request: bytes) -> bytes:
        """Send a request and wait for its reply."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._connection, HEADER.pack(len(request)) + request)
        (length,) = HEADER.unpack(await self._receive(HEADER.size))
        if length > self._max_bytes + 2**20:  # the worker enforces the limit itself, unless its code was tampered with
            raise EOFError
        return await self._receive(length)

    async def _receive(self, count: int) -> bytes:
        loop = asyncio.get_running_loop()
        parts = bytearray()
        while len(parts) < count:
            part = await loop.sock_recv(self._connection, min(count - len(parts), 1 << 20))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    async def exit_reason(self) -> str:
        """How it ended, for a message."""
        for _ in range(200):
            if self.process.poll() is not None:
                break
            await asyncio.sleep(0.005)
        code = self.process.returncode
        if code is None:
            return "closed its connection"
        if code < 0:
            name = signal_name(-code)
            return f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
        return f"ended with exit code {code}"

    def is_dead(self) -> bool:
        """Whether it ended while idle."""
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return self.process.poll() is not None
        if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        self.kill()  # its children, before the id of their group can be reused
        self.process.poll()
        return True

    def kill(self) -> None:
        """SIGKILL for the process and all its children."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
        self._lifeline.close()


def _kill_all(workers: set[_Worker]) -> None:
    """Kill all workers: the pool was garbage-collected, or the program ends."""
    for worker in workers:
        worker.kill()
        worker.close()
    for worker in workers:
        worker.process.wait()
