"""Runs `agent-r1` under torchrun: its lines as they come, its ranks by number."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Torchrun:
    """A run on several ranks of this machine; `with` ends whatever is left of it."""

    def __init__(self, *arguments: str, size: int = 2) -> None:
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)),
                *("-m", "agent_r1.cli", *arguments),
            ],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TERM": "dumb"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._ranks: dict[int, int] = {}

    def __enter__(self) -> Torchrun:
        return self

    def __exit__(self, *_: object) -> None:
        for number in [self._process.pid, *self._ranks.values()]:
            try:
                os.kill(number, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.lines.extend(iter(self._process.stdout.readline, ""))

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def wait_for(self, pattern: str, *, seconds: float = 300.0) -> None:
        """Wait until a line matches."""
        self._wait(lambda: re.search(pattern, self.text) is not None, seconds)

    def process_of(self, rank: int) -> int:
        """The process of a rank."""
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                variables = (folder / "environ").read_text(errors="replace").split("\0")
            except OSError:
                continue
            if int(parent) == self._process.pid:
                self._ranks |= {int(text[5:]): int(folder.name) for text in variables if text.startswith("RANK=")}
        return self._ranks[rank]

    def send(self, number: int) -> None:
        """Send a signal to torchrun itself."""
        self._process.send_signal(number)

    def finish(self, *, seconds: float = 300.0) -> int:
        """Wait for the end; returns the exit code."""
        self._wait(lambda: self._process.poll() is not None, seconds)
        self._reader.join()
        return self._process.returncode

    def _wait(self, is_done: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not is_done():
            assert time.monotonic() < end, f"nothing in {seconds} s:\n{self.text}"
            if self._process.poll() is not None:
                self._reader.join()
                assert is_done(), f"it ended:\n{self.text}"
                return
            time.sleep(0.05)
