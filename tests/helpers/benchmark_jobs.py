"""Processes for the jobs of benchmarks (`benchmarks/common/processes.py`): ended ones, and forked commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.helpers.forks import Forked, forks


class Ended:
    """A process that has ended."""

    def __init__(self, code: int) -> None:
        self.code = code

    def poll(self) -> int:
        return self.code

    def wait(self, timeout: float | None = None) -> int:
        return self.code

    def terminate(self) -> None:
        raise AssertionError("it has ended")

    kill = terminate


class ForkedCommand:
    """A command without the time for imports."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        self.running: Forked = forks().start(["agent-r1", *command], Path.cwd(), environment, merged=True)

    def poll(self) -> int | None:
        code = self.running.poll()
        if code is not None and not self.running.stdout.closed:
            self.log.write_text(self.running.communicate()[0])
        return code

    def wait(self, timeout: float | None = None) -> int:
        return self.running.wait(timeout)

    def terminate(self) -> None:
        self.running.kill()

    kill = terminate
