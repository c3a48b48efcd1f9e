"""Stateful interpreters: milliseconds of an episode's first and later calls, processes and memory of many episodes.

    python benchmarks/speed/interpreters.py --episodes 512 --limit 64 --preload sympy --json interpreters.json

Every episode makes `--calls` calls of one tool, through the tool runner, `--concurrency` at once; between its calls all
others make theirs, so that with more episodes than `--limit` every later call restores its interpreter. Rows: a new
interpreter that imports the module (`--plain` episodes), then forks of one process that has. `MB` is the proportional
memory (PSS) of the fork server and all interpreters at the end of a round, the largest of all rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_r1.tools import PythonTool, ToolContext
from agent_r1.types import Task


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=512, help="episodes alive at once (512)")
    parser.add_argument("--plain", type=int, default=4, help="episodes without a fork server (4)")
    parser.add_argument("--calls", type=int, default=2, help="calls per episode (2)")
    parser.add_argument("--limit", type=int, default=64, help="living interpreters (64)")
    parser.add_argument("--concurrency", type=int, default=os.cpu_count() or 1, help="calls at once (processors)")
    parser.add_argument("--preload", default="sympy", help="the module that programs import (sympy)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args(arguments)
    rows = {
        "plain": asyncio.run(measure(chosen, chosen.plain, preload="")),
        "forked": asyncio.run(measure(chosen, chosen.episodes, preload=f"import {chosen.preload}")),
    }
    for name, row in rows.items():
        print(f"{name:8}" + "".join(f"{key} {value:<12.4g}" for key, value in row.items()))
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=2) + "\n")
    return rows


async def measure(chosen: argparse.Namespace, num_episodes: int, *, preload: str) -> dict[str, float]:
    """The figures of so many episodes."""
    tool = PythonTool(stateful=True, packages=True, preload=preload, max_interpreters=chosen.limit, seconds=60)
    contexts = [ToolContext(task=Task(task_id=str(number), prompt=())) for number in range(num_episodes)]
    slots = asyncio.Semaphore(chosen.concurrency)
    seconds: list[list[float]] = [[] for _ in range(chosen.calls)]
    code = [f"import {chosen.preload}\nx = 1\nprint(x)", *["x += 1\nprint(x)"] * (chosen.calls - 1)]

    async def call(number: int, context: ToolContext) -> None:
        async with slots:
            start = time.perf_counter()
            response, *_ = await tool.execute({"code": code[number]}, context=context)
            seconds[number].append(time.perf_counter() - start)
        if response.text != str(number + 1):
            raise RuntimeError(f"call {number} printed {response.text!r}")

    if preload:  # the server's own start is not an episode's
        first = ToolContext(task=Task(task_id="first", prompt=()))
        await tool.execute({"code": "1"}, context=first)
        await tool.close(first)
    most: tuple[int, float] = (0, 0.0)
    start = time.perf_counter()
    for number in range(chosen.calls):
        await asyncio.gather(*(call(number, context) for context in contexts))
        most = max(most, sandbox_memory())
    elapsed = time.perf_counter() - start
    await asyncio.gather(*(tool.close(context) for context in contexts))
    return {
        "episodes": num_episodes,
        "first_call_ms": 1000 * statistics.median(seconds[0]),
        "later_call_ms": 1000 * statistics.median([value for calls in seconds[1:] for value in calls] or [0.0]),
        "calls_per_s": num_episodes * chosen.calls / elapsed,
        "processes": most[0],
        "MB": most[1],
    }


def sandbox_memory() -> tuple[int, float]:
    """How many processes this one has started, directly or not, and their proportional memory in MB."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [os.getpid()]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    sizes = [_pss(process) for process in found[1:]]
    return len(sizes), sum(sizes) / 1024


def _pss(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


if __name__ == "__main__":
    main()
