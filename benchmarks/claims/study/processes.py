"""The processes of the study: the warm start of a task, and one training run after the other, several at a time."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agent_r1.errors import AgentR1Error, DataError
from agent_r1.runs import DEFAULT_KEYS, RunFolder, is_locked, read_evaluation, read_runs
from agent_r1.version import __version__
from benchmarks.claims.study.plan import NO_WASTE, ROOT, Run, Settings
from benchmarks.claims.study.results import Start, Trained

POLL_SECONDS = 0.1
PATIENCE_SECONDS = 30.0
"""How long interrupted processes may take to end by themselves."""
_WITHOUT_CURVES = {"time/step", "loss/sft"}


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


class Place:
    """The folders of one task on this machine."""

    def __init__(self, work: Path, task: str, model: str | None, label: str) -> None:
        self.task, self.model, self.label = task, model, label
        self.folder = work / label / task
        self.warm_start = self.folder / f"{task}_warm_start"
        self.evaluation = self.folder / "warm_start.json"

    def prepare_command(self, base: Settings) -> list[str]:
        """Makes the data and the warm start, and evaluates it."""
        return [
            *("eval", str(ROOT / "recipes" / self.task), "--json", str(self.evaluation)),
            *overrides(
                {**base, "run.folder": str(self.folder), "sft.folder": str(self.warm_start), **self._model_setting()}
            ),
        ]

    def _model_setting(self) -> dict[str, str]:
        return {} if self.model is None else {"model.path": self.model}

    def train_command(self, run: Run) -> list[str]:
        """Trains one run from the warm start."""
        return [
            *("train", str(ROOT / "recipes" / self.task)),
            *overrides(
                {
                    **run.settings,
                    **NO_WASTE,
                    "run.folder": str(self.folder),
                    "run.name": run.name,
                    "run.resume": "never",
                    "trainer.seed": str(run.seed),
                    "model.path": str(RunFolder(self.warm_start).model),
                    "sft.folder": "null",
                }
            ),
        ]

    def read_start(self, base: Settings) -> Start | None:
        """The warm start that this machine has; None when it is missing or was made with other settings."""
        weights = sorted(RunFolder(self.warm_start).model.glob("*.safetensors"))
        try:
            found: dict[str, Any] = json.loads(self.evaluation.read_text(encoding="utf-8"))
            settings = dict(text.split("=", 1) for text in found["overrides"])
        except (OSError, ValueError, KeyError):
            return None
        expected = {**base, **self._model_setting()}
        if not weights or any(settings.get(key) != value for key, value in expected.items()):
            return None
        digest = hashlib.sha256()
        for file in weights:
            digest.update(file.read_bytes())
        return Start(
            task=self.task,
            model=self.label,
            digest=digest.hexdigest()[:16],
            settings=dict(base),
            tasks=found["tasks"],
            sources=found["sources"],
            solved=found["solved"],
            metrics=_rounded(found["metrics"]),
        )

    def forget_start(self) -> None:
        """Forget the evaluation of a warm start before another is made."""
        self.evaluation.unlink(missing_ok=True)

    def clear(self, run: Run) -> None:
        """Remove what an interrupted run has left; `DataError` while a process is still writing it."""
        folder = self.folder / run.name
        if is_locked(folder):
            raise DataError(f"another process is still working in {folder}; wait for it, or end it")
        shutil.rmtree(folder, ignore_errors=True)

    def collect(self, run: Run, start: Start, seconds: float, commit: str) -> Trained:
        """The result of a finished run, whose folder is then removed."""
        folder = RunFolder(self.folder / run.name)
        [record] = read_runs([folder.path])
        after = read_evaluation(folder.evaluation("validation", "after"))
        if list(after.tasks) != list(start.tasks):
            raise DataError(f"{folder.path} was evaluated on other tasks than its warm start")
        trained = Trained(
            task=run.task,
            model=self.label,
            variant=run.variant.name,
            seed=run.seed,
            settings=run.settings,
            start=start.digest,
            solved=[_short(value) for value in after.solved],
            metrics=_rounded(after.metrics),
            curves={
                key: [[line["step"], _short(line[key])] for line in record.lines if key in line]
                for key in DEFAULT_KEYS
                if key in record.metric_names and key not in _WITHOUT_CURVES
            },
            seconds=round(seconds, 1),
            minutes=round(record.minutes, 2),
            peak_gpu_gb=None if record.peak_gpu_gb is None else round(record.peak_gpu_gb, 1),
            version=__version__,
            commit=commit,
        )
        shutil.rmtree(folder.path)
        return trained


def overrides(settings: Settings) -> list[str]:
    """Settings as arguments of a command."""
    return [f"{key}={value}" for key, value in settings.items()]


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
    say: Callable[[str], None],
    deadline: float | None = None,
    start: Starter = start_process,
) -> list[str]:
    """Run all jobs, `at_once` at a time; returns what failed, one line each. After the `deadline` (of
    `time.monotonic`) no job starts. An interrupt ends the processes, then raises."""
    waiting, running, problems = list(jobs), list[_Running](), list[str]()
    with _ended(running):
        while waiting or running:
            if deadline is not None and time.monotonic() > deadline and waiting:
                say(f"the time is up: {len(waiting)} were not started; run the same command again")
                waiting.clear()
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                with _noting(job, problems, say):
                    job.begin()
                    running.append(_Running(job, start, at_once))
            ended = [process for process in running if process.process.poll() is not None]
            for process in ended:
                running.remove(process)
                with _noting(process.job, problems, say):
                    say(f"{process.job.name}: {process.finish()}")
            if not ended and running:
                time.sleep(POLL_SECONDS)
    return problems


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
def _noting(job: Job, problems: list[str], say: Callable[[str], None]) -> Iterator[None]:
    """Inside, an error is reported and noted: the other jobs continue."""
    try:
        yield
    except (AgentR1Error, OSError) as error:
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


def _short(value: float) -> float:
    """A number in few letters: 0 and 1 instead of 0.0 and 1.0."""
    return int(value) if float(value).is_integer() else float(f"{value:.4g}")


def _rounded(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: _short(value) for name, value in sorted(metrics.items())}
