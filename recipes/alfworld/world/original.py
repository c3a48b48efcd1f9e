"""`OriginalPlayer`: the same games played by textworld, in processes of their own."""

from __future__ import annotations

import asyncio
import atexit
import importlib.util
import json
import subprocess
import sys
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from agent_r1.errors import ConfigError

from .goals import Goal
from .pddl import replace_goal

_NEEDED = ("textworld", "fast_downward", "alfworld")


def missing_packages() -> list[str]:
    """What the original needs and is not installed."""
    return [name for name in _NEEDED if importlib.util.find_spec(name) is None]


class OriginalWorker:
    """A process that plays games, and the lock that keeps its requests apart."""

    def __init__(self) -> None:
        missing = missing_packages()
        if missing:
            raise ConfigError(
                f"env.engine=textworld needs {', '.join(missing)}: pip install 'agent-r1[alfworld]' (it builds "
                "a planner with g++, which takes minutes), or use env.engine=twin, which plays the same games"
            )
        program = Path(__file__).with_name("original_worker.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )
        self._lock = threading.Lock()
        self._numbers = count()
        self.num_games = 0
        atexit.register(self.stop)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def start(self, problem: str, task: str) -> tuple[int, dict[str, Any]]:
        """Begin a game: its number and its first answer."""
        number = next(self._numbers)
        return number, self.ask({"start": number, "problem": problem, "task": task})

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            try:
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()
                line = self._process.stdout.readline()
            except OSError as error:
                raise RuntimeError(f"the process of textworld has ended: {error}") from error
        if not line:
            raise RuntimeError(f"the process of textworld has ended with status {self._process.wait()}")
        told: dict[str, Any] = json.loads(line)
        if "error" in told:
            raise RuntimeError(f"textworld cannot play this game:\n{told['error']}")
        return told

    def stop(self) -> None:
        """End the process."""
        atexit.unregister(self.stop)
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


class WorkerPool:
    """The processes of this program; a game goes to the one with the fewest."""

    def __init__(self) -> None:
        self._workers: list[OriginalWorker] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> OriginalWorker:
        """A process for one more game, of at most `size`."""
        with self._lock:
            self._workers = [worker for worker in self._workers if worker.alive]
            if len(self._workers) < size:
                self._workers.append(OriginalWorker())
            worker = min(self._workers, key=lambda worker: worker.num_games)
            worker.num_games += 1
            return worker

    def stop(self) -> None:
        """End all processes."""
        with self._lock:
            while self._workers:
                self._workers.pop().stop()


POOL = WorkerPool()


class OriginalPlayer:
    """A game of textworld."""

    def __init__(self, worker: OriginalWorker, number: int, told: dict[str, Any]) -> None:
        self._worker, self._number = worker, number
        self._take(told)

    @classmethod
    async def start(cls, problem: str, goal: Goal, workers: int = 2) -> OriginalPlayer:
        """Begin a game of a PDDL problem with this goal."""
        worker = POOL.take(workers)
        try:
            changed = replace_goal(problem, goal.pddl())
            return cls(worker, *await asyncio.to_thread(worker.start, changed, goal.text))
        except BaseException:
            worker.num_games -= 1
            raise

    def _take(self, told: dict[str, Any]) -> None:
        self.answer: str = told["answer"]
        self.won: bool = told["won"]
        self.commands: list[str] = told["commands"]
        self.key: str = told["key"]

    async def give(self, command: str) -> None:
        """Give a command."""
        self._take(await asyncio.to_thread(self._worker.ask, {"give": self._number, "command": command}))

    async def close(self) -> None:
        """Forget the game."""
        self._worker.num_games -= 1
        if self._worker.alive:
            await asyncio.to_thread(self._worker.ask, {"close": self._number})
