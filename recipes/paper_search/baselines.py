"""Policies without a model on the rows of a split, with the reading limit of the environment.

    python recipes/paper_search/baselines.py --data runs/paper_search_data --split test

Everything they read is their answer. `expert` knows the relevant papers and chooses among calls of the tools: how far
they reach.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from agent_r1.data import load_tasks
from agent_r1.registry import load_module, recipe_folder
from agent_r1.types import Task

# A plain import would not find them when this file is run as a script.
with recipe_folder(Path(__file__).resolve().parent):
    library, reading = load_module("library"), load_module("reading")
    policies, reward_fn = load_module("policies"), load_module("reward_fn")

PAGE = 5
"""Papers per call of the expert, as in `base.yaml`."""
ALL_TOOLS = ("search", "cited", "expand")


def read_by(policy: Callable[[Any], None], task: Task, papers: Any, limit: int, page: int) -> list[int]:
    """The papers that a policy reads for a task."""
    given = task.env_kwargs
    view = library.View(library=papers, hidden=tuple(given["hidden"]), day=given["day"])
    state = reading.Reading(view=view, query=given["query"], limit=limit, page=page)
    policy(state)
    read: list[int] = state.papers
    return read


def expert_on(task: Task, tools: Sequence[str]) -> Callable[[Any], None]:
    """The expert of a task as a policy."""

    def play(state: Any) -> None:
        for _ in policies.expert(state, task.ground_truth, tools, random.Random(task.task_id)):
            pass

    return play


def figures(values: Sequence[Sequence[float]]) -> str:
    """Mean precision, recall with its 95 % interval, F1, and papers read."""
    precision, recall, f1, read = (list(column) for column in zip(*values, strict=True))
    half = 1.96 * stdev(recall) / math.sqrt(len(recall)) if len(recall) > 1 else 0.0
    return f"{fmean(recall):.3f} ± {half:.3f}  {fmean(precision):9.3f}  {fmean(f1):5.3f}  {fmean(read):5.1f}"


def compare(tasks: Sequence[Task], papers: Any, limit: int, experts: bool) -> None:
    """Print a line for each policy and kind of query."""
    runs: dict[str, Callable[[Task], list[int]]] = {
        name: lambda task, policy=policy: read_by(policy, task, papers, limit, limit)  # type: ignore[misc]
        for name, policy in policies.BASELINES.items()
    }
    for name, tools in {"expert": ALL_TOOLS, "expert_without_cited": ("search", "expand")}.items() if experts else ():
        runs[name] = lambda task, tools=tools: read_by(  # type: ignore[misc]
            expert_on(task, tools), task, papers, limit, PAGE
        )
    print(f"{'policy':24} {'queries':16} {'rows':>5}  recall         precision  F1     read")
    for name, run in runs.items():
        scored = [
            (task.data_source, (*overlap_of(task, read), float(len(read)))) for task in tasks for read in [run(task)]
        ]
        for kind in (*sorted({kind for kind, _ in scored}), "all"):
            chosen = [values for source, values in scored if kind in (source, "all")]
            print(f"{name:24} {kind:16} {len(chosen):5}  {figures(chosen)}", flush=True)


def overlap_of(task: Task, read: Sequence[int]) -> tuple[float, float, float]:
    """Precision, recall and F1 of what was read."""
    result: tuple[float, float, float] = reward_fn.overlap(read, task.ground_truth)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="what process_paper_search.py wrote")
    parser.add_argument("--split", default="test", choices=("train", "validation", "test"))
    parser.add_argument("--max_read", type=int, default=30, help="papers per query")
    parser.add_argument("--rows", type=int, help="only the first rows")
    parser.add_argument("--experts", action="store_true", help="also the expert, with and without the tool cited")
    chosen = parser.parse_args(arguments)
    tasks = load_tasks([chosen.data / f"{chosen.split}.parquet"])[: chosen.rows]
    compare(tasks, library.open_library(str(chosen.data / "library")), chosen.max_read, chosen.experts)


if __name__ == "__main__":
    main()
