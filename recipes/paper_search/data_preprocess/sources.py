"""Papers and queries, from prepared files or from PeerRead.

* prepared: `papers.jsonl` (`title`, `abstract`, `date`, `cites`; a paper's number is its place) and `queries.jsonl`
  (`type`, `query`, `source_pid`, `gold`), both also as `.jsonl.xz`;
* PeerRead: a clone of the repository, or its archive (`peerread.py`).
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from agent_r1.data import DATA_VARIABLE, find_files, locate, read_raw
from agent_r1.errors import DataError
from agent_r1.registry import load_module, recipe_folder
from agent_r1.tools.builtin.search import shorten

with recipe_folder(Path(__file__).resolve().parents[1]):
    library = load_module("library")
    prompts = load_module("prompts")
    peerread = load_module("data_preprocess.peerread")

FOLDER = "papers"
ARCHIVE = "https://github.com/allenai/PeerRead/archive/refs/heads/master.tar.gz"
QUERY_CHARACTERS = 400
_SAME_WORDS = 30
"""Papers whose abstracts begin with the same words, so many, are versions of one paper."""


@dataclass(frozen=True, kw_only=True)
class Query:
    """A text whose citations are looked for."""

    kind: str
    """inline_citation: a sentence; related_work: the title of a paper."""
    text: str
    source: int
    """The paper it is from."""
    versions: tuple[int, ...]
    """That paper and those with the same abstract: other versions of it, with nearly the same references."""
    day: int
    """When that was published (`library.Paper.day`)."""
    relevant: tuple[int, ...]
    """What it cites."""


@dataclass(frozen=True, kw_only=True)
class Collection:
    """Papers with their citations, and queries."""

    papers: list[Any]
    queries: list[Query]


def read_collection(folder: Path | None = None) -> Collection:
    """The collection of `folder`, else of what AGENT_R1_DATA names, else of PeerRead, downloaded."""
    parent = os.environ.get(DATA_VARIABLE)
    given = folder or (Path(parent).expanduser() / FOLDER if parent else None)
    if given is None:
        [archive] = locate("PeerRead", {"archive": [ARCHIVE]})["archive"]
        return checked(*peerread.read_peerread(archive))
    if (given / "data").is_dir() or given.is_file():
        return checked(*peerread.read_peerread(given))
    return checked(*(list(read_raw(find_files(given, name))) for name in ("papers", "queries")))


def checked(papers: list[dict[str, Any]], queries: list[dict[str, Any]]) -> Collection:
    """Rows as records; queries that have nothing to be found are left out. A number that no paper has is an error."""
    problems = [
        f"{name} {number}: {problem}"
        for name, rows in (("paper", papers), ("query", queries))
        for number, row in enumerate(rows)
        if (problem := _problem(name, row, len(papers)))
    ]
    if problems:
        raise DataError(f"{len(problems)} rows cannot be used:\n" + "\n".join(f"  - {line}" for line in problems[:10]))
    collected = [
        library.Paper(
            title=row["title"],
            abstract=row.get("abstract") or "",
            day=day_of(row.get("date")),
            cites=tuple(row["cites"]),
        )
        for row in papers
    ]
    versions = versions_of(collected)
    found = (_query(row, collected, versions[row["source_pid"]]) for row in queries)
    return Collection(papers=collected, queries=[query for query in found if query.relevant])


def versions_of(papers: list[Any]) -> list[tuple[int, ...]]:
    """For each paper the papers whose abstracts begin with the same words, itself included."""
    words = [re.findall(r"\w+", paper.abstract.lower())[:_SAME_WORDS] for paper in papers]
    starts = [" ".join(some) if len(some) == _SAME_WORDS else str(number) for number, some in enumerate(words)]
    groups: dict[str, list[int]] = defaultdict(list)
    for number, start in enumerate(starts):
        groups[start].append(number)
    return [tuple(groups[start]) for start in starts]


def _query(row: Mapping[str, Any], papers: list[Any], versions: tuple[int, ...]) -> Query:
    """A query without the papers that are hidden: other versions of itself, and what is dated later."""
    source = row["source_pid"]
    day = papers[source].day
    relevant = (
        paper for paper in dict.fromkeys(row["gold"]) if paper not in versions and not 0 < day < papers[paper].day
    )
    text = shorten(" ".join(row["query"].split()), QUERY_CHARACTERS)
    return Query(
        kind=row["type"], text=text, source=source, versions=versions, day=day, relevant=tuple(sorted(relevant))
    )


def day_of(date: str | None) -> int:
    """The ordinal of a date such as 19-Apr-2017; 0 for one that is missing or cannot be read.

    >>> day_of("2-Jan-0001"), day_of(None), day_of("last year")
    (2, 0, 0)
    """
    try:
        return datetime.strptime(date or "", "%d-%b-%Y").toordinal()
    except ValueError:
        return 0


def _problem(name: str, row: Mapping[str, Any], num_papers: int) -> str:
    texts, numbers = (("title",), "cites") if name == "paper" else (("query", "type"), "gold")
    missing = [key for key in texts if not isinstance(row.get(key), str) or not row[key].strip()]
    if missing:
        return f"{', '.join(missing)} must be a text; found {', '.join(sorted(row))}"
    if name == "query" and row["type"] not in prompts.KINDS:
        return f"type '{row['type']}' is not one of {', '.join(prompts.KINDS)}"
    given = (
        [*row[numbers], *([row.get("source_pid")] if name == "query" else [])]
        if row.get(numbers) is not None
        else [None]
    )
    wrong = [number for number in given if not isinstance(number, int) or not 0 <= number < num_papers]
    return f"{wrong[0]!r} is not the number of one of the {num_papers} papers" if wrong else ""
