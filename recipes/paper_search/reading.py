"""What an episode has read: every paper that was shown counts once, and the number of papers is limited."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from .library import View


@dataclass(kw_only=True, slots=True)
class Reading:
    """The papers that were shown in one episode, numbered from 1 in the order in which they were shown."""

    view: View
    query: str
    """The text whose citations are looked for."""
    limit: int
    """Maximum papers per episode."""
    page: int
    """Maximum papers per call."""
    papers: list[int] = field(default_factory=list)

    @property
    def left(self) -> int:
        """How many papers may still be shown."""
        return self.limit - len(self.papers)

    def preview(self, ranked: Iterable[int]) -> list[int]:
        """The papers of a ranking that a call would show: the first ones that were not shown before."""
        known = set(self.papers)
        return list(islice((paper for paper in ranked if paper not in known), min(self.page, self.left)))

    def show(self, ranked: Iterable[int]) -> list[int]:
        """Show what `preview` says; these papers are read from now on."""
        new = self.preview(ranked)
        self.papers += new
        return new

    def answer(self, ranked: Iterable[int]) -> str:
        """What the model reads of a ranking.

        [1] Adam: A Method for Stochastic Optimization
        [2] Sequence to Sequence Learning with Neural Networks
        28 papers left to read.
        """
        if self.left < 1:
            return f"You have read {self.limit} papers: write the answer."
        first = len(self.papers) + 1
        titles = [self.view.library.titles[paper] for paper in self.show(ranked)]
        lines = [f"[{number}] {title}" for number, title in enumerate(titles, start=first)]
        rest = f"{self.left} papers left to read." if self.left else "No papers left to read: write the answer."
        return "\n".join([*(lines or ["Nothing new."]), rest])

    def number(self, number: int) -> int:
        """The paper that was shown under a number; ValueError when there is none."""
        if not 1 <= number <= len(self.papers):
            shown = f"the papers shown are 1 to {len(self.papers)}" if self.papers else "no paper was shown yet"
            raise ValueError(f"there is no paper [{number}]: {shown}")
        return self.papers[number - 1]
