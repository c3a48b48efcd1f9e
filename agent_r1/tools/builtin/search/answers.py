"""Answers to searches: what was found in an index, as text for a model.

`answer_requests` runs wherever the processor is free: in a thread, or in a worker process.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from agent_r1.tools.builtin.search.index import Hit, PassageIndex

_MIN_SHARE = 80


class SearchRequest(NamedTuple):
    """A search that was asked for. Its arguments have been checked."""

    queries: tuple[str, ...]
    """What to look for."""
    k: int
    """Passages per query."""
    characters: int
    """Maximum length of the answer."""


class SearchAnswer(NamedTuple):
    """The answer to a request."""

    text: str
    """What the model reads."""
    passage_ids: list[list[str]]
    """The ids of the passages found for each query, also of those that were left out of the text."""


def answer_requests(folder: str, requests: Sequence[SearchRequest]) -> list[SearchAnswer]:
    """The answers to requests, which share one search. Without requests, only open the index."""
    index = shared_index(Path(folder))
    queries = [query for request in requests for query in request.queries]
    # The best 3 are the first 3 of the best 5, so requests with different `k` still share one search.
    results = iter(index.search(queries, max((request.k for request in requests), default=1)))
    return [_answer(request, [next(results)[: request.k] for _ in request.queries]) for request in requests]


def _answer(request: SearchRequest, hits_of: list[list[Hit]]) -> SearchAnswer:
    ids = [[hit.passage.passage_id for hit in hits] for hits in hits_of]
    return SearchAnswer(answer_text(request.queries, hits_of, request.characters), ids)


def answer_text(queries: Sequence[str], results: list[list[Hit]], characters: int) -> str:
    """The passages in at most `characters`, titles included. Each text is shortened to its share; where a share would
    be too short to be useful, the last hits of each query are left out."""
    while True:
        bare = _join_results(queries, results, 0)
        num_hits = sum(map(len, results))
        share = (characters - len(bare)) // max(num_hits, 1)
        max_hits = max(map(len, results), default=0)
        if share >= _MIN_SHARE or max_hits <= 1:
            return _join_results(queries, results, max(share, 1))
        results = [hits[: max_hits - 1] for hits in results]


def _join_results(queries: Sequence[str], results: list[list[Hit]], share: int) -> str:
    parts = [_format_hits(hits, share) for hits in results]
    if len(parts) > 1:
        parts = [f'Results for "{query}":\n{part}' for query, part in zip(queries, parts, strict=True)]
    return "\n\n".join(parts)


def _format_hits(hits: Sequence[Hit], characters: int) -> str:
    """Numbered passages: "[1] Tea" on one line, its text on the next."""
    if not hits:
        return "No passage matches."
    return "\n\n".join(_format_hit(number, hit, characters) for number, hit in enumerate(hits, start=1))


def _format_hit(number: int, hit: Hit, characters: int) -> str:
    title = hit.passage.title or hit.passage.passage_id
    return f"[{number}] {title}\n{shorten(hit.passage.text, characters)}"


def shorten(text: str, characters: int) -> str:
    """The beginning of a text, cut between words.

    >>> shorten("one two three", 9), shorten("one two", 9)
    ('one two …', 'one two')
    """
    if len(text) <= characters:
        return text
    head = text[: max(characters - 2, 0)]
    if not text[len(head)].isspace() and " " in head:
        head = head.rpartition(" ")[0]
    return f"{head.rstrip()} …" if head.strip() else "…"


_indexes: dict[Path, tuple[int, PassageIndex]] = {}
_opening = threading.Lock()


def shared_index(folder: Path) -> PassageIndex:
    """The index of a folder, opened once per process, and again after it was rebuilt."""
    from agent_r1.tools.builtin.search.index import open_index

    with _opening:
        built = index_version(folder)
        if folder not in _indexes or _indexes[folder][0] != built:
            _indexes[folder] = (built, open_index(folder))
        return _indexes[folder][1]


def index_version(folder: Path) -> int:
    """A number that changes when the index in a folder is rebuilt."""
    from agent_r1.tools.builtin.search.index import MANIFEST, read_manifest

    try:
        return (folder / MANIFEST).stat().st_mtime_ns
    except OSError:
        read_manifest(folder)  # says what is wrong with the folder
        raise
