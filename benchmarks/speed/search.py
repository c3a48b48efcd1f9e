"""Search: seconds to index passages, queries a second in batches, and whether a reloaded index gives the same.

    python benchmarks/speed/search.py corpus.jsonl.xz --queries questions.jsonl.xz --json search.json

`corpus.jsonl.xz` has rows with `title` and `text`, `questions.jsonl.xz` rows with `question`; without questions the
titles of passages are the queries.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_r1.tools.builtin.search import BM25Index, PassageFields, PassageIndex, read_passages

BATCH = 256


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("passages", nargs="+", type=Path, help="files of passages")
    parser.add_argument("--queries", type=Path, help="a file of questions")
    parser.add_argument("--num-queries", type=int, default=2048)
    parser.add_argument("-k", type=int, default=5, help="passages a query")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(chosen.passages, chosen.queries, Path(folder) / "index", chosen.num_queries, chosen.k)
    for name, value in figures.items():
        print(f"{name:28} {value:.4g}" if isinstance(value, float) else f"{name:28} {value}")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")
    return figures


def measure(files: Sequence[Path], questions: Path | None, folder: Path, num_queries: int, k: int) -> dict[str, Any]:
    """All figures. Reading the files is part of indexing."""
    started = time.perf_counter()
    built = BM25Index.build(read_passages(files), folder)
    index_seconds = time.perf_counter() - started
    started = time.perf_counter()
    loaded = BM25Index.load(folder)
    load_seconds = time.perf_counter() - started
    queries = draw_queries(files, questions, num_queries)
    before, _ = in_batches(built, queries, k)
    after, seconds = in_batches(loaded, queries, k)
    return {
        "passages": len(built),
        "index_seconds": index_seconds,
        "load_seconds": load_seconds,
        "index_bytes": sum(file.stat().st_size for file in folder.iterdir()),
        "queries": len(queries),
        "queries_per_second": len(queries) / seconds,
        "same_after_reload": before == after,
        "same_one_by_one": [loaded.search([query], k)[0] for query in queries[:64]] == after[:64],
    }


def draw_queries(files: Sequence[Path], questions: Path | None, count: int) -> list[str]:
    """Questions, or titles, drawn with a fixed seed."""
    if questions is not None:
        texts = [passage.text for passage in read_passages([questions], PassageFields(text="question"))]
    else:
        texts = [passage.title for passage in read_passages(files) if passage.title]
    return random.Random(0).choices(texts, k=count)


def in_batches(index: PassageIndex, queries: Sequence[str], k: int) -> tuple[list[Any], float]:
    """What was found, and the seconds it took in batches of 256."""
    found = []
    started = time.perf_counter()
    for start in range(0, len(queries), BATCH):
        found += index.search(queries[start : start + BATCH], k)
    return found, time.perf_counter() - started


if __name__ == "__main__":
    main()
