"""Runs whose episodes are in worker processes: a recipe that can kill its worker, what is compared, what is left."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_r1.types import Trajectory
from tests.helpers.tiny_runs import RECIPE, tiny_overrides

REWARD = """
import os, signal, sys
from pathlib import Path

from .words import WORD


def score(task, episode):
    kill = os.environ.get("TEST_KILL_ONCE")
    if kill and len(episode.steps) and Path(kill).exists():
        try:
            Path(kill).unlink()
        except FileNotFoundError:
            pass  # the other worker was first
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    return {
        "score": float(len(set(episode.final_text))),
        "answer": WORD,
        "torch": float("torch" in sys.modules),
        "pid": float(os.getpid()),
    }
"""


def recipe_in(folder: Path, *, word: str = "first") -> Path:
    """The quickstart's tools with another reward, in a folder that is called like a module that workers need."""
    recipe = folder / "recipe" / "json"
    shutil.copytree(RECIPE, recipe, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    (recipe / "words.py").write_text(f"WORD = {word!r}\n")
    (recipe / "reward_fn.py").write_text(REWARD)
    tool = f"price_{hashlib.sha1(str(folder).encode()).hexdigest()[:8]}"  # `price` is taken here
    for name, old, new in (("tools.py", "@tool\n", f"@tool(name='{tool}')\n"), ("base.yaml", "[price,", f"[{tool},")):
        (recipe / name).write_text((recipe / name).read_text().replace(old, new))
    return recipe


def tiny_run(folder: Path, model: Path, *extra: str) -> list[str]:
    folder.mkdir(exist_ok=True)
    _, *overrides = tiny_overrides(folder, model, "trainer.steps=2", "rollout.group_size=6", *extra)
    return overrides


def comparable(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Everything but the times and the process."""

    def timeless(metrics: Any) -> dict[str, Any]:
        return {name: value for name, value in metrics.items() if not name.endswith("/seconds")}

    return [
        replace(
            trajectory,
            steps=tuple(
                replace(step, timings={}, info={**step.info, "metrics": timeless(step.info.get("metrics", {}))})
                for step in trajectory.steps
            ),
            metrics=timeless(trajectory.metrics),
            reward_parts={name: part for name, part in trajectory.reward_parts.items() if name not in ("pid", "torch")},
        )
        for trajectory in trajectories
    ]


def metrics_of(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def wait_for(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    """The first true value of a condition."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "nothing happened for too long"
        time.sleep(0.2)
    return value


def processes_below(parent: int) -> dict[int, str]:
    """The processes that a process has started, and theirs, by their command lines."""
    parents: dict[int, int] = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    found, new = set[int](), {parent}
    while new:
        new = {pid for pid, above in parents.items() if above in new}
        found |= new
    return {pid: name for pid in found if (name := name_of(pid))}


def name_of(pid: int) -> str:
    """The command line of a process; "" when it has ended."""
    with suppress(OSError):
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return ""
