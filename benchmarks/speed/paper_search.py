"""The environment of paper_search: calls per second, and memory with many episodes alive.

    python benchmarks/speed/paper_search.py --data runs/paper_search_data --episodes 512

All episodes are open at once and take their calls in turn, as in a training step: first `cited` with the keywords of
their text, then phrases of it and of titles that were shown, with `search`, `cited` and `expand`. Eight episodes have
the same task, as the members of a group have. `memory` is what Python and numpy allocated for the episodes and for the
rankings that are kept, without the collection; it is measured in a second pass, which is slower.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_r1.data import load_tasks
from agent_r1.registry import load_module, recipe_folder
from agent_r1.types import Action, Task, ToolCall

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "paper_search"
MEMBERS = 8
CALLS = 6


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="what process_paper_search.py wrote")
    parser.add_argument("--episodes", type=int, default=512, help="episodes that are alive at once")
    parser.add_argument("--repeats", type=int, default=3, help="the best of so many passes counts")
    chosen = parser.parse_args(arguments)
    figures = measure(chosen.data, chosen.episodes, chosen.repeats)
    print(json.dumps(figures))
    return figures


def measure(data: Path, num_episodes: int, repeats: int) -> dict[str, float]:
    """Calls per second of the best pass, and bytes per episode."""
    with recipe_folder(RECIPE):
        library, policies = load_module("library"), load_module("policies")
        make = load_module("environment").PaperSearchEnv
        folder = str(data / "library")
        papers = library.open_library(folder)
        tasks = load_tasks([data / "train.parquet"])[: max(1, num_episodes // MEMBERS)]
        given = [tasks[number % len(tasks)] for number in range(num_episodes)]
        seconds = []
        for _ in range(repeats):
            forget(papers)
            started = time.perf_counter()
            calls = asyncio.run(play(make, folder, given, policies))[0]
            seconds.append(time.perf_counter() - started)
        forget(papers)
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        held = asyncio.run(play(make, folder, given, policies))[1]
        tracemalloc.stop()
    return {
        "episodes": num_episodes,
        "calls": calls,
        "calls_per_second": round(calls / min(seconds)),
        "memory_mb": round((held - before) / 1e6, 2),
        "kb_per_episode": round((held - before) / 1e3 / num_episodes, 1),
    }


def forget(papers: Any) -> None:
    """Remove the rankings that are kept."""
    for kept in (papers.ranked, papers.cited, papers.places):
        kept.cache_clear()


async def play(make: Any, folder: str, tasks: Sequence[Task], policies: Any) -> tuple[int, int]:
    """Open all episodes and take all their calls: how many, and the bytes that are held while all are alive."""
    envs = [make(folder) for _ in tasks]
    shown = [await env.reset(task) for env, task in zip(envs, tasks, strict=True)]
    calls = 0
    for turn in range(CALLS):
        for number, (env, task) in enumerate(zip(envs, tasks, strict=True)):
            text = str(shown[number].messages[-1]["content"])
            rng = random.Random(f"{turn} {number}")
            call = choose(task, text, turn, policies, rng)
            shown[number] = (await env.step(Action(text="", tool_calls=(call,)))).observation
            calls += 1
    held = tracemalloc.get_traced_memory()[0] if tracemalloc.is_tracing() else 0
    for env in envs:
        await env.close()
    return calls, held


def choose(task: Task, text: str, turn: int, policies: Any, rng: random.Random) -> ToolCall:
    """A call: the keywords of the text first, then a phrase of it or of what was shown last, or references."""
    query = task.env_kwargs["query"]
    if turn == 0:
        return ToolCall(name="cited", arguments={"topic": policies.keywords(query)})
    if turn % 3 == 2:
        return ToolCall(name="expand", arguments={"paper": rng.randint(1, 5)})
    phrase = rng.choice(policies.phrases(query) + policies.phrases(text) or [query])
    tool, argument = rng.choice((("cited", "topic"), ("search", "query")))
    return ToolCall(name=tool, arguments={argument: phrase})


if __name__ == "__main__":
    main()
