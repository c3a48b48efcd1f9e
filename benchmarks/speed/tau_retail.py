"""The environment of tau_retail: calls per second, and memory with many episodes alive.

    python benchmarks/speed/tau_retail.py --data runs/tau_retail_data --episodes 512

All episodes are open at once and take their calls in turn, as in a training step; each plays the demonstration of its
task, look-ups and changes, and eight have the same task, as the members of a group have. `memory` is what Python
allocated for the episodes while all are alive and have made their changes, without the database, which they share; it
is measured in a second pass, which is slower. `copies_mb` is what as many copies of the database would take.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_r1.data import load_tasks
from agent_r1.registry import load_module, recipe_folder
from agent_r1.types import Action, Task, ToolCall

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "tau_retail"
MEMBERS = 8


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="what process_tau_retail.py wrote")
    parser.add_argument("--episodes", type=int, default=512, help="episodes that are alive at once")
    parser.add_argument("--repeats", type=int, default=3, help="the best of so many passes counts")
    chosen = parser.parse_args(arguments)
    figures = measure(chosen.data, chosen.episodes, chosen.repeats)
    print(json.dumps(figures))
    return figures


def measure(data: Path, num_episodes: int, repeats: int) -> dict[str, float]:
    """Calls per second of the best pass, and bytes per episode."""
    with recipe_folder(RECIPE):
        expert = load_module("expert")
        database = load_module("database").open_database(str(data))
        make = load_module("env").RetailEnv
        tasks = load_tasks([data / "train.parquet"])[: max(1, num_episodes // MEMBERS)]
        plans = [(task, expert.look_ups(database, task)) for task in tasks]
        given = [plans[number % len(plans)] for number in range(num_episodes)]
        seconds = []
        for _ in range(repeats):
            started = time.perf_counter()
            calls = asyncio.run(play(make, data, given))[0]
            seconds.append(time.perf_counter() - started)
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        held = asyncio.run(play(make, data, given))[1] - before
        before = tracemalloc.get_traced_memory()[0]
        copied = copy.deepcopy((database.users, database.orders))
        copies = (tracemalloc.get_traced_memory()[0] - before) * num_episodes
        tracemalloc.stop()
        del copied
    return {
        "episodes": num_episodes,
        "calls": calls,
        "calls_per_second": round(calls / min(seconds)),
        "memory_mb": round(held / 1e6, 2),
        "kb_per_episode": round(held / 1e3 / num_episodes, 1),
        "copies_mb": round(copies / 1e6),
    }


async def play(make: Any, data: Path, plans: Sequence[tuple[Task, Sequence[Any]]]) -> tuple[int, int]:
    """Open all episodes and take all their calls: how many, and the bytes that are held while all are alive."""
    envs = [make(str(data)) for _ in plans]
    for env, (task, _) in zip(envs, plans, strict=True):
        await env.reset(task)
    calls = 0
    for turn in range(max(len(plan) for _, plan in plans)):
        for env, (_, plan) in zip(envs, plans, strict=True):
            if turn < len(plan):
                name, arguments = plan[turn]
                await env.step(Action(text="", tool_calls=(ToolCall(name=name, arguments=arguments),)))
                calls += 1
    held = tracemalloc.get_traced_memory()[0] if tracemalloc.is_tracing() else 0
    for env in envs:
        await env.close()
    return calls, held


if __name__ == "__main__":
    main()
