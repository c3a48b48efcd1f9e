"""How much longer a training step takes on a busy machine than on a quiet one.

    python benchmarks/speed/busy.py --busy 20 --folder runs_busy

One run of recipes/quickstart trains while this script starts and ends busy processes: some steps quiet, some busy, in
turns. A ratio is the median under load over the quiet median: of whole steps, of their rollouts and of their updates.
With 20 busy processes on 2 cores a fair share alone makes what two threads do 11 times as long. `cpu` is the processor
time of a step, which load should not change: threads that spin while they wait for each other use it up.

The recipe's data and model are made in `--folder` first, if they are not there.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("step", "rollout", "update", "cpu")
_SPIN = "while True: pass"
_WAIT_SECONDS = 0.05


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, default=20, help="busy processes")
    parser.add_argument("--steps", type=int, default=3, help="steps per turn, after one that is not counted")
    parser.add_argument("--turns", type=int, default=2, help="turns of quiet and busy steps")
    parser.add_argument("--recipe", default=str(ROOT / "recipes" / "quickstart"))
    parser.add_argument("--folder", type=Path, default=Path("runs_busy"), help="run.folder")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides of the configuration")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args(arguments)
    with training(chosen.recipe, chosen.folder, chosen.set) as run:
        run.next_step()  # the first one warms up
        quiet: list[dict[str, float]] = []
        busy: list[dict[str, float]] = []
        for _ in range(chosen.turns):
            quiet += run.steps(chosen.steps)
            with busy_processes(chosen.busy):
                busy += run.steps(chosen.steps)
    figures: dict[str, Any] = {"busy_processes": chosen.busy}
    for part in PARTS:
        figures[f"quiet_{part}"] = [step[part] for step in quiet]
        figures[f"busy_{part}"] = [step[part] for step in busy]
        figures[f"ratio_{part}"] = _median(busy, part) / max(_median(quiet, part), 1e-9)
    for name, value in figures.items():
        shown = " ".join(f"{one:.3g}" for one in (value if isinstance(value, list) else [value]))
        print(f"{name:16} {shown}")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")
    return figures


def _median(steps: Sequence[dict[str, float]], part: str) -> float:
    return statistics.median(step[part] for step in steps)


@contextmanager
def busy_processes(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Within the block, processes that never wait."""
    started = [subprocess.Popen([sys.executable, "-S", "-E", "-c", _SPIN]) for _ in range(count)]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


class Training:
    """A training run whose steps are watched."""

    def __init__(self, process: subprocess.Popen[bytes], metrics: Path) -> None:
        self._process = process
        self._metrics = metrics
        self._num_read = 0

    def steps(self, count: int) -> list[dict[str, float]]:
        """Wall and processor seconds of the next steps, but for the one that is under way."""
        self.next_step()
        return [self.next_step() for _ in range(count)]

    def next_step(self) -> dict[str, float]:
        """Wall and processor seconds of the next step."""
        self._check_that_it_runs()
        before = self._cpu_seconds()
        while len(lines := self._lines()) <= self._num_read:
            self._check_that_it_runs()
            time.sleep(_WAIT_SECONDS)
        self._num_read = len(lines)
        metrics = json.loads(lines[-1])
        return {"cpu": self._cpu_seconds() - before, **{part: float(metrics[f"time/{part}"]) for part in PARTS[:-1]}}

    def _check_that_it_runs(self) -> None:
        if self._process.poll() is not None:
            raise SystemExit(f"training ended with exit code {self._process.returncode}")

    def _lines(self) -> list[str]:
        text = self._metrics.read_text() if self._metrics.is_file() else ""
        return [line for line in text.splitlines(keepends=True) if line.endswith("\n") and "time/step" in line]

    def _cpu_seconds(self) -> float:
        stat = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def training(recipe: str, folder: Path, overrides: Sequence[str]) -> Iterator[Training]:
    """A run of the recipe that trains until the end of the block."""
    name = f"busy_{os.getpid()}"
    command = [sys.executable, "-m", "agent_r1.cli", "train", recipe, f"run.folder={folder}", f"run.name={name}"]
    command += ["trainer.steps=10000", "trainer.save_every=10000", "eval.before=false", *overrides]
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.DEVNULL)
    try:
        yield Training(process, folder / name / "metrics.jsonl")
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
