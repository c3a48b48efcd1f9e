"""Search: seconds to index passages, and queries per second with latencies under many askers at once.

    python benchmarks/speed/search.py corpus*.jsonl.xz --queries train.jsonl.xz --workers 0 1 2 --json search.json

The files of passages have rows with `title` and `text`, the file of queries rows with `question`; without one the
titles of passages are the queries. `askers` ask the tool `search` through the tool runner, each its next query as soon
as the last one is answered: queries that differ from each other (nothing comes from the cache), then each query eight
times, as the members of a group ask. Rows: the reference (one thread, every score added up), then the tool by number of
workers, 0 being a thread. `lag` is the longest time that the event loop was held up. With `--cores 2` the whole
process and its workers run on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agent_r1.tools import BaseTool, SearchTool, ToolRunner
from agent_r1.tools.base import ToolContext
from agent_r1.tools.builtin.search import BM25Index, PassageFields, open_index, read_passages
from agent_r1.tools.builtin.search.searcher import default_workers, searcher_of_loop
from agent_r1.types import Task, ToolCall
from benchmarks.common.reference_search import ReferenceIndex, ReferenceTool

CHARACTERS = 1500
MEMBERS = 8
_CONTEXT = ToolContext(task=Task(task_id="benchmark", prompt=()))


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("passages", nargs="+", type=Path, help="files of passages")
    parser.add_argument("--queries", type=Path, help="a file of questions")
    parser.add_argument("--num-queries", type=int, default=8192, help="calls per measurement")
    parser.add_argument("--askers", type=int, default=512, help="calls at once")
    parser.add_argument("--workers", type=int, nargs="+", help="numbers of workers; default: 0, 1 and the tool's own")
    parser.add_argument("--cores", type=int, help="use only this many cores (Linux)")
    parser.add_argument("--repeats", type=int, default=3, help="the fastest of this many rounds counts")
    parser.add_argument("-k", type=int, default=3, help="passages per query")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args(arguments)
    if chosen.cores is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: chosen.cores])
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(chosen, Path(folder) / "index")
    for name, value in figures.items():
        if name != "rows":
            print(f"{name:20} {value:.4g}" if isinstance(value, float) else f"{name:20} {value}")
    print(f"\n{'':12} {'queries':10} {'per second':>10} {'p50 ms':>8} {'p95 ms':>8} {'p99 ms':>8} {'lag ms':>8}")
    for row in figures["rows"]:
        times = " ".join(f"{row[name]:8.1f}" for name in ("p50_ms", "p95_ms", "p99_ms", "lag_ms"))
        print(f"{row['searcher']:12} {row['queries']:10} {row['queries_per_second']:10.0f} {times}")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")
    return figures


def measure(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All figures. Reading the files is part of indexing."""
    started = time.perf_counter()
    BM25Index.build(read_passages(chosen.passages), folder)
    index_seconds = time.perf_counter() - started
    started = time.perf_counter()
    loaded = open_index(folder)
    load_seconds = time.perf_counter() - started
    queries = draw_queries(chosen.passages, chosen.queries, chosen.num_queries)
    numbers = chosen.workers or sorted({0, 1, default_workers()})
    rows: list[dict[str, Any]] = []
    for workers in (None, *numbers):
        rows += asyncio.run(ask_all(folder, workers, queries, chosen))
    some = queries[:256]
    return {
        "passages": len(loaded),
        "index_seconds": index_seconds,
        "load_seconds": load_seconds,
        "index_bytes": sum(file.stat().st_size for file in folder.iterdir()),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "askers": chosen.askers,
        "calls": len(queries),
        "same_as_reference": loaded.search(some, chosen.k) == ReferenceIndex(folder).search(some, chosen.k),
        "rows": rows,
    }


def draw_queries(files: Sequence[Path], questions: Path | None, count: int) -> list[str]:
    """Questions, or titles, in an order drawn with a fixed seed; when there are too few, again with more spaces at
    their end, which makes them different texts with the same words."""
    if questions is not None:
        texts = [passage.text for passage in read_passages([questions], PassageFields(text="question"))]
    else:
        texts = [passage.title for passage in read_passages(files) if passage.title]
    texts = sorted({text.strip() for text in texts})
    random.Random(0).shuffle(texts)
    return [texts[number % len(texts)] + " " * (number // len(texts)) for number in range(count)]


async def ask_all(
    folder: Path, workers: int | None, queries: Sequence[str], chosen: argparse.Namespace
) -> list[dict[str, Any]]:
    """The rows of one number of workers; None: of the reference."""
    tool: BaseTool
    if workers is None:
        tool = ReferenceTool(folder, k=chosen.k, characters=CHARACTERS)
    else:
        tool = SearchTool(folder, k=chosen.k, characters=CHARACTERS, workers=workers)
    name = "reference" if workers is None else f"{workers} worker{'s' * (workers != 1)}"
    repeated = [query for query in queries[: -(-len(queries) // MEMBERS)] for _ in range(MEMBERS)][: len(queries)]
    rows = []
    async with ToolRunner() as runner:
        await ask(runner, tool, [f"{query} ?" for query in queries[:512]], chosen.askers)
        if workers:
            await searcher_of_loop(workers).wait_until_started()
        for kind, asked, mark in (("distinct", queries, "."), ("repeated", repeated, "!")):
            rounds = [
                await ask(runner, tool, [query + mark * number for query in asked], chosen.askers)
                for number in range(1, chosen.repeats + 1)
            ]
            fastest = max(rounds, key=lambda figures: figures["queries_per_second"])
            rows.append({"searcher": name, "queries": kind, **fastest})
    return rows


async def ask(runner: ToolRunner, tool: BaseTool, queries: Sequence[str], num_askers: int) -> dict[str, float]:
    """Ask all queries, `num_askers` at a time."""
    waiting: Iterator[str] = iter(queries)
    seconds: list[float] = []

    async def one_asker() -> None:
        for query in waiting:
            call = ToolCall(name="search", arguments={"query": query})
            outcome = await runner.call({"search": tool}, call, _CONTEXT)
            assert outcome.status == "ok", outcome.response.text
            seconds.append(outcome.seconds)

    lags: list[float] = [0.0]
    heartbeat = asyncio.create_task(_beat(lags))
    started = time.perf_counter()
    await asyncio.gather(*(one_asker() for _ in range(num_askers)))
    elapsed = time.perf_counter() - started
    heartbeat.cancel()
    ordered = sorted(seconds)
    percentiles = {f"p{share}_ms": 1000 * ordered[int(share / 100 * (len(ordered) - 1))] for share in (50, 95, 99)}
    return {"queries_per_second": len(queries) / elapsed, **percentiles, "lag_ms": 1000 * max(lags)}


async def _beat(lags: list[float]) -> None:
    """Note how late the event loop wakes a task that sleeps for a millisecond."""
    while True:
        before = time.perf_counter()
        await asyncio.sleep(0.001)
        lags.append(time.perf_counter() - before - 0.001)


if __name__ == "__main__":
    main()
