"""Commands of `agent-r1` as jobs: processes of their own, several at a time, each with a log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agent_r1.errors import AgentR1Error, DataError

ROOT = Path(__file__).resolve().parents[2]
"""The repository."""
POLL_SECONDS = 0.1
PATIENCE_SECONDS = 30.0
"""How long interrupted processes may take to end by themselves."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A process to run."""

    name: str
    """How it is reported."""
    command: Sequence[str]
    """Its command line."""
    log: Path
    """Where its output goes."""
    finish: Callable[[float], str]
    """Called with its seconds when it has succeeded; returns what is reported."""
    begin: Callable[[], None] = lambda: None
    """Called before it starts."""
    needs: Sequence[str] = ()
    """The names of jobs that have to succeed before; a name that no job has is no obstacle."""
    trains: bool = False
    """Whether it trains a model, which takes more of a GPU than an evaluation."""


class Process(Protocol):
    """A command that runs; `subprocess.Popen` is one."""

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; `subprocess.TimeoutExpired` when it takes longer."""

    def terminate(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it."""


Starter = Callable[[Sequence[str], Path, Mapping[str, str]], Process]
"""Starts `agent-r1 ARGUMENTS` with its output in a file and an environment."""


def start_process(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Process:
    """A new Python."""
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "agent_r1.cli", *command],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process alone, which ends them
        )


def current_commit() -> str:
    """The commit of the working tree, with a `+` when files differ from it; "" outside of git."""
    shown = _git("rev-parse", "--short=12", "HEAD")
    return f"{shown}{'+' if shown and _git('status', '--porcelain', '--untracked-files=no') else ''}"


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def run_jobs(
    jobs: Sequence[Job],
    *,
    at_once: int,
    trainings: int | None = None,
    say: Callable[[str], None],
    deadline: float | None = None,
    start: Starter = start_process,
) -> list[str]:
    """Run all jobs in their order, `at_once` at a time, of which `trainings` (None: all) may train, each when those
    that it needs have succeeded; returns what failed, one line each. After the `deadline` (of `time.monotonic`) no job
    starts. An interrupt ends the processes, then raises."""
    waiting, running, problems = list(jobs), list[_Running](), list[str]()
    failed: set[str] = set()
    with _ended(running):
        while waiting or running:
            if deadline is not None and time.monotonic() > deadline and waiting:
                say(f"the time is up: {len(waiting)} were not started; run the same command again")
                waiting.clear()
            while len(running) < at_once:
                may_train = sum(process.job.trains for process in running) < (trainings or at_once)
                job = _next_job(waiting, running, failed, may_train=may_train)
                if job is None:
                    break
                waiting.remove(job)
                with _noting(job, problems, failed, say):
                    job.begin()
                    running.append(_Running(job, start, at_once))
            ended = [process for process in running if process.process.poll() is not None]
            for process in ended:
                running.remove(process)
                with _noting(process.job, problems, failed, say):
                    say(f"{process.job.name}: {process.finish()}")
            _drop_hopeless(waiting, failed, say)
            if not ended and running:
                time.sleep(POLL_SECONDS)
    return problems


def _next_job(waiting: Sequence[Job], running: Sequence[_Running], failed: set[str], *, may_train: bool) -> Job | None:
    """The first job whose needs have all succeeded, and that may run now."""
    obstacles = {job.name for job in (*waiting, *(process.job for process in running))} | failed
    return next((job for job in waiting if obstacles.isdisjoint(job.needs) and (may_train or not job.trains)), None)


def _drop_hopeless(waiting: list[Job], failed: set[str], say: Callable[[str], None]) -> None:
    """Drop the jobs that need one that has failed."""
    for job in list(waiting):
        missing = [name for name in job.needs if name in failed]
        if missing:
            waiting.remove(job)
            failed.add(job.name)
            say(f"{job.name}: not started, because of: {missing[0]}")


class _Running:
    """A process that was started."""

    def __init__(self, job: Job, start: Starter, at_once: int) -> None:
        self.job, self.started = job, time.monotonic()
        job.log.parent.mkdir(parents=True, exist_ok=True)
        self.process = start(job.command, job.log, _environment(at_once))

    def finish(self) -> str:
        """What is reported of the ended process; `DataError` when it failed."""
        code = self.process.poll()
        if code:
            last = self.job.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-12:]
            shown = "\n    ".join(last)
            raise DataError(f"exit code {code}; the end of {self.job.log}:\n    {shown}")
        return self.job.finish(time.monotonic() - self.started)


def _environment(at_once: int) -> dict[str, str]:
    """Processes share the cores."""
    threads = str(max(1, (os.cpu_count() or 1) // at_once))
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {"OMP_NUM_THREADS": threads, **os.environ, "PYTHONPATH": paths}


@contextmanager
def _noting(job: Job, problems: list[str], failed: set[str], say: Callable[[str], None]) -> Iterator[None]:
    """Inside, an error is reported and noted: the other jobs continue."""
    try:
        yield
    except (AgentR1Error, OSError) as error:
        failed.add(job.name)
        problems.append(f"{job.name}: {str(error).splitlines()[-1].strip()}")
        say(f"{job.name} FAILED: {error}")


@contextmanager
def _ended(running: list[_Running]) -> Iterator[None]:
    """Afterwards no process is left. SIGTERM ends the block as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        for process in running:
            process.process.terminate()
        latest = time.monotonic() + PATIENCE_SECONDS
        for process in running:
            try:
                process.process.wait(max(0.0, latest - time.monotonic()))
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                process.process.kill()
                process.process.wait()
