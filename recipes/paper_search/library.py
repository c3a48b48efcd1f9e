"""The collection of papers: BM25 over titles and abstracts, and the citations inside the collection.

A folder made by `Library.build` holds an index of `agent_r1.tools.builtin.search` and `papers.jsonl` with titles, days
and references. It is loaded once per process and shared by all episodes; what one task may see of it is a `View`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agent_r1.data import read_raw, write_rows
from agent_r1.errors import ConfigError
from agent_r1.tools.builtin.search import BM25Index, Passage, shorten

TITLE_CHARACTERS = 100
NEIGHBOURS = 200
"""How many papers about a topic have a say in what is cited most."""
_DEPTH = 2 * NEIGHBOURS
"""How many hits a query is ranked to before those that a task may not see are left out."""
_CACHED_QUERIES = 2048

Ranking = tuple[NDArray[np.int32], NDArray[np.float32]]
"""Papers, best first, and their scores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Paper:
    """One paper. Its number is its place in the collection."""

    title: str
    abstract: str
    day: int
    """The proleptic ordinal of the day it was published (`datetime.date.toordinal`); 0: unknown."""
    cites: tuple[int, ...]
    """The papers of the collection in its references."""


class Library:
    """The collection. Rankings of the last queries are kept, since the episodes of a group ask similar things."""

    def __init__(
        self, index: BM25Index, titles: Sequence[str], days: Sequence[int], cites: Sequence[Sequence[int]]
    ) -> None:
        self.titles = titles
        self.days = np.asarray(days, np.int32)
        self._starts = np.concatenate([[0], np.cumsum([len(some) for some in cites])]).astype(np.int64)
        self._references = np.array([paper for some in cites for paper in some], np.int32)
        self._index = index
        self.ranked = lru_cache(maxsize=_CACHED_QUERIES)(self._rank)
        self.cited = lru_cache(maxsize=_CACHED_QUERIES)(self._cited)
        self.places = lru_cache(maxsize=_CACHED_QUERIES // 8)(self._places)

    @classmethod
    def build(cls, papers: Sequence[Paper], folder: Path) -> Library:
        """Write the collection into a folder, replacing one that is there."""
        passages = [
            Passage(passage_id=str(number), title=paper.title, text=paper.abstract)
            for number, paper in enumerate(papers)
        ]
        BM25Index.build(passages, folder / "index")
        write_rows(
            folder / "papers.jsonl",
            (
                {"title": shorten(paper.title, TITLE_CHARACTERS), "day": paper.day, "cites": list(paper.cites)}
                for paper in papers
            ),
        )
        open_library.cache_clear()
        return cls.load(folder)

    @classmethod
    def load(cls, folder: Path) -> Library:
        """The collection in a folder."""
        file = folder / "papers.jsonl"
        if not file.is_file():
            raise ConfigError(
                f"there is no collection of papers in {folder}. Make it: python "
                f"recipes/paper_search/data_preprocess/process_paper_search.py --local_save_dir {folder.parent}"
            )
        rows = list(read_raw([file]))
        index = BM25Index.load(folder / "index")
        if len(index) != len(rows):
            raise ConfigError(f"{folder} has {len(rows)} papers and an index of {len(index)}; make it again")
        return cls(index, *([row[key] for row in rows] for key in ("title", "day", "cites")))

    def __len__(self) -> int:
        return len(self.titles)

    def references(self, paper: int) -> NDArray[np.int32]:
        """The papers that a paper cites."""
        return self._references[self._starts[paper] : self._starts[paper + 1]]

    def _rank(self, query: str, depth: int) -> Ranking:
        hits = self._index.rank(query, depth)
        return np.array([number for number, _ in hits], np.int32), np.array([score for _, score in hits], np.float32)

    def _places(self, query: str) -> dict[int, int]:
        return {paper: place for place, paper in enumerate(self.ranked(query, _DEPTH)[0].tolist())}

    def _cited(self, topic: str, view: View) -> list[int]:
        near, scores = view.ranked(topic, NEIGHBOURS)
        if not len(near):
            return []
        weights = (scores / scores[0]).astype(np.float64)
        starts, counts = self._starts[near], self._starts[near + 1] - self._starts[near]
        # The places of all their references in one array: 0, 1, 2 ... from each start.
        places = np.arange(counts.sum()) + np.repeat(starts - np.cumsum(counts) + counts, counts)
        votes = np.repeat(weights**2, counts)
        totals = np.bincount(self._references[places], weights=votes, minlength=len(self)).astype(np.float64)
        totals[near] += weights
        papers = np.flatnonzero(totals).astype(np.int32)
        papers = papers[view.visible(papers)]
        found: list[int] = papers[np.argsort(-totals[papers], kind="stable")[:NEIGHBOURS]].tolist()
        return found


@lru_cache(maxsize=4)
def open_library(folder: str) -> Library:
    """The collection in a folder, loaded once per process."""
    return Library.load(Path(folder))


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """What one task may see of the collection: not the paper that cites, not its other versions, and nothing published
    after it.

    A paper without a date stays visible, and so does every paper when the citing one has none.
    """

    library: Library
    hidden: tuple[int, ...] = ()
    """The paper whose citations are looked for, and its other versions."""
    day: int = 0
    """The day it was published; 0: unknown."""

    def visible(self, papers: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Which of the papers may be seen."""
        shown = self.library.days[papers] <= self.day if self.day else np.ones(len(papers), np.bool_)
        for paper in self.hidden:
            shown &= papers != paper
        return shown

    def ranked(self, query: str, count: int) -> Ranking:
        """The best visible papers for a query by BM25 over title and abstract, `count` of them if so many match."""
        depth = _DEPTH
        while True:
            papers, scores = self.library.ranked(query, depth)
            kept = self.visible(papers)
            if int(kept.sum()) >= count or len(papers) < depth:
                return papers[kept][:count], scores[kept][:count]
            depth *= 4

    def search(self, query: str, count: int = NEIGHBOURS) -> list[int]:
        """The papers that match a query, best first."""
        found: list[int] = self.ranked(query, count)[0].tolist()
        return found

    def cited(self, topic: str) -> list[int]:
        """The papers that matter to a topic, best first: what papers about it cite, and these papers themselves.

        Each of the nearest 200 papers has the weight w, its BM25 score divided by the best one. It gives w to itself
        and w² to every paper in its references.
        """
        return self.library.cited(topic, self)

    def references(self, paper: int, query: str) -> list[int]:
        """The visible references of a paper, those first that match the query best."""
        references, places = self.library.references(paper), self.library.places(query)
        kept: list[int] = references[self.visible(references)].tolist()
        return sorted(kept, key=lambda reference: places.get(reference, len(places)))
