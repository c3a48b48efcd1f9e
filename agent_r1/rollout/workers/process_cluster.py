"""Workers as processes on this machine (`rollout.workers=processes`): episodes use its other cores."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_r1.errors import WorkersError
from agent_r1.rollout.workers.cluster import WorkerLostError
from agent_r1.rollout.workers.frames import read_frame, write_frame
from agent_r1.rollout.workers.messages import FromWorker, StartFailure, ToWorker, WorkerInfo
from agent_r1.rollout.workers.worker import WorkerSetup
from agent_r1.tools import ROLLOUT_WORKERS, num_cores, signal_name

_STOP_SECONDS = 8.0
"""How long a worker may take to close its environments and tools before it is killed."""

_END_SECONDS = 2.0
"""How long a process whose connection is closed may take to end."""

_MAX_WORKERS = 8
"""More would not make the engine's own process any faster, which serves them all."""


def default_num_workers() -> int:
    """One worker per core of this process but one, on which the engine and the learner run; at most 8."""
    return max(1, min(_MAX_WORKERS, num_cores() - 1))


class ProcessCluster:
    """Starts a Python process per worker, with the driver's own interpreter, import path and environment."""

    def __init__(self, setup: WorkerSetup, *, num_workers: int) -> None:
        self._setup = setup
        self._num_workers = num_workers
        self._pickled_setup = b""

    def open(self) -> None:
        """Prepare the set-up of workers."""
        try:
            self._pickled_setup = self._setup.pickled(pickle.dumps)
        except (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise WorkersError(
                f"what the episodes need cannot be sent to the workers: {error}. Tools, environments and rewards that "
                "are given as objects must be picklable; name them as module:attribute instead"
            ) from error

    def new_worker(self) -> ProcessWorker:
        """A worker that is not started yet."""
        return ProcessWorker(self._pickled_setup, _environment(self._num_workers))

    def explain_shortage(self) -> str:
        """Why workers may not start."""
        return "processes cannot be started on this machine, or end at once: see what they printed"

    def close(self) -> None:
        """Nothing is left: every worker is stopped by its own handle."""
        self._pickled_setup = b""


class ProcessWorker:
    """One process, from its start to its end."""

    def __init__(self, pickled_setup: bytes, environment: dict[str, str]) -> None:
        self._pickled_setup = pickled_setup
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def start(self) -> WorkerInfo | StartFailure:
        """Start the process and wait until it is ready."""
        ours, theirs = socket.socketpair()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "agent_r1.rollout.workers.process_child", str(theirs.fileno())),
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the driver; a worker is killed with all that it started
            )
            self._reader, self._writer = await asyncio.open_connection(sock=ours)
        except OSError as error:
            raise WorkerLostError(f"its process could not be started: {error}") from error
        finally:
            theirs.close()
            if self._writer is None:
                ours.close()
        write_frame(self._writer, self._pickled_setup)
        info: WorkerInfo | StartFailure = await self._read()
        return info

    def deliver(self, batch: int, messages: Sequence[ToWorker]) -> None:
        """Send a batch without waiting; the socket keeps the order of batches."""
        if self._writer is not None and not self._writer.is_closing():
            write_frame(self._writer, messages)

    async def poll(self) -> list[FromWorker]:
        """What the worker sends."""
        messages: list[FromWorker] = await self._read()
        return messages

    async def stop(self) -> None:
        """Let the worker close what its episodes use, then kill it with everything that it started."""
        process, writer = self._process, self._writer
        if process is None:
            return
        try:
            if writer is not None and process.returncode is None:
                with suppress(TimeoutError):
                    write_frame(writer, None)
                    async with asyncio.timeout(_STOP_SECONDS):
                        await process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if writer is not None:
                writer.transport.abort()  # closing it would wait until the rest is sent, to a process that is gone
                with suppress(OSError):
                    await asyncio.shield(writer.wait_closed())
            await asyncio.shield(process.wait())

    async def _read(self) -> Any:
        assert self._reader is not None
        try:
            return await read_frame(self._reader)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise WorkerLostError(await self._how_it_ended()) from error
        except Exception as error:  # whatever pickle makes of bytes that other code wrote to the socket
            assert self._process is not None
            who = f"process {self._process.pid}"
            raise WorkerLostError(f"{who} sent what cannot be read: {error!r:.200}") from error

    async def _how_it_ended(self) -> str:
        assert self._process is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await self._process.wait()
        who, code = f"process {self._process.pid}", self._process.returncode
        if code is None:
            return f"{who} closed its connection"
        return f"{who} was killed by {signal_name(-code)}" if code < 0 else f"{who} ended with exit code {code}"


def _environment(num_workers: int) -> dict[str, str]:
    """The driver's environment, with its import path, and one thread per worker for numeric libraries."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path, ROLLOUT_WORKERS: str(num_workers)}
