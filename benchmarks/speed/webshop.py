"""WebShop: steps per second of the environment in one process, and the memory of episodes that are open at once.

    python benchmarks/speed/webshop.py runs/webshop_data --cores 2

The folder is what `recipes/webshop/data_preprocess/process_webshop.py` wrote. The purchases of the expert of the recipe
are played over and over, searches with words that were never searched for included (`--fresh-queries`: a share of them
gets a word of its own, so that the shop's memory of searches does not help). `steps_per_cpu_second` counts only the
time for which the process had a core, for machines that others use too. `memory` is what the process grows by when
so many episodes are opened and half played, without the shop itself; `shop` is what the shop takes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_r1.data import load_tasks
from agent_r1.envs import AgentEnv
from agent_r1.registry import load_module, recipe_folder
from agent_r1.types import Action, Task

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "webshop"


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what process_webshop.py wrote")
    parser.add_argument("--split", default="train", help="whose goals are played")
    parser.add_argument("--steps", type=int, default=20_000, help="steps per round")
    parser.add_argument("--episodes", type=int, default=512, help="episodes that are open at once")
    parser.add_argument("--fresh-queries", type=float, default=0.5, help="share of searches that are new to the shop")
    parser.add_argument("--context", default="append", help="the context policy")
    parser.add_argument("--cores", type=int, help="use only this many cores (Linux)")
    parser.add_argument("--repeats", type=int, default=3, help="the fastest of this many rounds counts")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args(arguments)
    if chosen.cores is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: chosen.cores])
    with recipe_folder(RECIPE):
        figures = asyncio.run(measure(chosen))
    for name, value in figures.items():
        print(f"{name:24}{value:12,.1f}")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")
    return figures


async def measure(chosen: argparse.Namespace) -> dict[str, float]:
    """Steps per second, then memory."""
    environment, expert, goals, shops = (load_module(name) for name in ("env", "expert", "goals", "shop"))

    def make_env() -> AgentEnv:
        env: AgentEnv = environment.ShopEnv(shop=str(chosen.folder), context=chosen.context)
        return env

    before = _traced(shops, chosen.folder)
    shop = shops.open_shop(chosen.folder)
    pairs = [
        (task, plan)
        for task in load_tasks([chosen.folder / f"{chosen.split}.parquet"])
        for goal in [goals.Goal.from_json(task.env_kwargs["goal"])]
        if (plan := expert.plan(shop, goal, random.Random(goal.goal_id))) is not None
    ]
    rounds = [
        await _play(make_env, pairs, chosen.steps, chosen.fresh_queries, random.Random(number))
        for number in range(chosen.repeats)
    ]
    return {
        "steps_per_second": max(taken / seconds for taken, seconds, _ in rounds),
        "steps_per_cpu_second": max(taken / cpu_seconds for taken, _, cpu_seconds in rounds),
        "shop_mb": before / 1e6,
        "episodes": float(chosen.episodes),
        "memory_mb": await _open_memory(make_env, pairs, chosen.episodes) / 1e6,
    }


def _traced(shops: Any, folder: Path) -> int:
    """Bytes that opening the shop takes."""
    tracemalloc.start()
    shops.open_shop(folder)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return taken


async def _play(
    make_env: Any, pairs: Sequence[tuple[Task, list[str]]], steps: int, fresh: float, rng: random.Random
) -> tuple[int, float, float]:
    """Play purchases one after the other: steps, seconds and seconds of a core; starting an episode is part of it."""
    taken = 0
    started, cpu_started = time.perf_counter(), time.process_time()
    while taken < steps:
        task, plan = pairs[rng.randrange(len(pairs))]
        env = make_env()
        await env.reset(task)
        for text in plan:
            if text.startswith("search[") and rng.random() < fresh:
                text = f"{text[:-1]} x{rng.randrange(10**9)}]"
            await env.step(Action(text=text, content=text))
        await env.close()
        taken += len(plan)
    return taken, time.perf_counter() - started, time.process_time() - cpu_started


async def _open_memory(make_env: Any, pairs: Sequence[tuple[Task, list[str]]], count: int) -> int:
    """Bytes that episodes take which have played all of a purchase but its last action."""
    gc.collect()
    tracemalloc.start()
    envs = []
    for number in range(count):
        task, plan = pairs[number % len(pairs)]
        env = make_env()
        await env.reset(task)
        for text in plan[:-1]:
            await env.step(Action(text=text, content=text))
        envs.append(env)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    for env in envs:
        await env.close()
    return taken


if __name__ == "__main__":
    main()
