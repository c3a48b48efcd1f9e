"""Watches the processes of a run: a rank that died, hangs or gave up ends the run on all ranks, with one clear line.

Every rank writes a sign of life into the store that torchrun keeps, twice a second, from a thread of its own, and reads
those of the others. A signal that reaches one rank is passed on to all.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_r1.interrupts import StopSignals

_INTERVAL = 0.5
_GRACE_SECONDS = 4.0
"""How long the main thread may take to end by itself, with an error of its own, before the process is ended."""
_DONE = "done"


class Monitor:
    """The thread of one rank. `store` is a client of its own: a store answers one call of a client at a time."""

    def __init__(self, store: Any, *, rank: int, size: int, dead_after: float) -> None:
        self._store = store
        self._rank, self._size = rank, size
        self._dead_after = dead_after
        self._seen: dict[int, tuple[str, float]] = {}
        self._processes: dict[int, tuple[str, int]] = {}
        self._stop: StopSignals | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self.outcome: Callable[[], str] = lambda: ""
        """What the run leaves, for the message."""
        self.before_exit: Callable[[], None] = lambda: None
        """Called before the process is ended."""

    def start(self) -> None:
        """Tell the others which process this is, learn theirs, and begin to watch."""
        self._store.set(f"process/{self._rank}", f"{os.getpid()} {_namespace()}")
        for rank in range(self._size):
            number, _, host = self._store.get(f"process/{rank}").decode().partition(" ")
            self._processes[rank] = (host, int(number))
        threading.Thread(target=self._watch, daemon=True, name="rank monitor").start()

    def attach(self, stop: StopSignals) -> None:
        """Pass signals on, to and from the other ranks."""
        self._stop = stop

    def close(self, *, finished: bool) -> None:
        """Stop watching; `finished` says that this rank needs no one any more and may leave."""
        self._closed.set()
        if finished:
            with self._lock:
                self._store.set(f"alive/{self._rank}", _DONE)

    def abort(self, message: str) -> None:
        """End the run on all other ranks, which show the message."""
        with self._lock:
            self._store.set("abort", f"{self._rank} {message}")

    def dead_ranks(self) -> list[int]:
        """Ranks of this host whose process has ended."""
        return [
            rank
            for rank, (host, number) in self._processes.items()
            if rank != self._rank and host == _namespace() and not _is_running(number)
        ]

    def describe(self, rank: int) -> str:
        """`rank 1 (process 4242 on node7)`."""
        host, number = self._processes.get(rank, ("", 0))
        return f"rank {rank} (process {number} on {host.partition(' ')[0]})"

    def post(self, key: str, text: str) -> None:
        """Write into the store."""
        with self._lock:
            self._store.set(key, text)

    def posted(self, key: str) -> str | None:
        """What was written under a key; None: nothing yet."""
        with self._lock:
            return self._store.get(key).decode() if self._store.check([key]) else None

    # --- the thread ------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        count, failing_since = 0, None
        while not self._closed.wait(_INTERVAL):
            count += 1
            try:
                with self._lock:
                    if self._closed.is_set():
                        return
                    self._store.set(f"alive/{self._rank}", str(count))
                message = self._look()
                failing_since = None
            except Exception as error:
                failing_since = failing_since or time.monotonic()
                if time.monotonic() - failing_since < min(15.0, self._dead_after):
                    continue
                message = f"the store of the run cannot be reached ({type(error).__name__}): its first host is gone"
            if message is not None:
                self._end(message)
                return

    def _look(self) -> str | None:
        """Why the run must end; None: it need not."""
        self._pass_signals_on()
        aborted = self.posted("abort")
        if aborted is not None and not aborted.startswith(f"{self._rank} "):
            return aborted.partition(" ")[2]
        dead = self.dead_ranks()
        unfinished = [rank for rank in dead if self.posted(f"alive/{rank}") != _DONE]
        if unfinished:
            return f"{self.describe(unfinished[0])} has ended"
        now = time.monotonic()
        for rank in set(range(self._size)) - {self._rank}:
            sign = self.posted(f"alive/{rank}") or ""
            if self._seen.get(rank, ("?", 0.0))[0] != sign:
                self._seen[rank] = (sign, now)
            elif sign != _DONE and now - self._seen[rank][1] > self._dead_after:
                return (
                    f"{self.describe(rank)} has given no sign of life for {self._dead_after:g} s "
                    "(trainer.sharding.dead_after_seconds)"
                )
        return None

    def _pass_signals_on(self) -> None:
        stop = self._stop
        if stop is None:
            return
        posted = self.posted("signal")
        if stop.received is not None and posted is None:
            self.post("signal", str(stop.received))
        elif stop.received is None and posted is not None:
            os.kill(os.getpid(), int(posted))

    def _end(self, message: str) -> None:
        """End this process, unless the main thread does so first. The lowest rank that is alive shows the message."""
        if self._closed.wait(_GRACE_SECONDS):
            return
        lost = {rank for rank in range(self._size) if f"rank {rank} (" in message}
        if self._rank == min(set(range(self._size)) - lost, default=0):
            leaves = self.outcome()
            print(f"error: {message}, and the run ends. {leaves}".rstrip(), file=sys.stderr, flush=True)
        self._kill_silent()
        self.before_exit()
        os._exit(2)

    def _kill_silent(self) -> None:
        """Kill processes of this host that hang: they would not end when asked to, and torchrun would wait for them."""
        for rank, (sign, since) in self._seen.items():
            host, number = self._processes[rank]
            is_silent = sign != _DONE and time.monotonic() - since > self._dead_after
            if is_silent and host == _namespace() and _is_running(number):
                with suppress(OSError):
                    os.kill(number, signal.SIGKILL)


def _namespace() -> str:
    """The host and the namespace in which process ids are valid."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{platform.node()} {boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return platform.node()


def _is_running(process: int) -> bool:
    """Whether a process of this host is alive; one that has ended and was not waited for is not."""
    try:
        os.kill(process, 0)
        state = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    except OSError:
        return not Path("/proc/self/stat").exists()  # no /proc: it answered the signal
    return state not in "ZX"
