"""Policies without a model: baselines, and the expert whose episodes are the warm start.

The baselines know the text alone. The expert knows which papers are relevant and uses it to choose among calls that
could be made without knowing: words of the text, words of titles that were shown, numbers of papers that were shown.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bm25s.stopwords import STOPWORDS_EN

from .reading import Reading

_CITATION = re.compile(
    r"[A-Z][\w'-]+(?: (?:and|&) [A-Z][\w'-]+| et al\.?),? *\(?(?:19|20)\d\d[a-z]?\)?;?"  # Liu and Chen, 2015a;
    r"|\b(?:19|20)\d\d[a-z]?\b|\bet al\.?"
)
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9-]+")
_GENERAL = """
about after all also among been before being between both can could did does during each either from had has have how
into its like may more most much often one other others our over same she should since so some than them those through
thus two under until very was we were what when where which while who whose would
applied approach approaches based different example following however include includes including introduced many
method methods paper papers previous propose proposed proposes recent recently several show showed shown shows study
studies use used uses using various via well work works
"""
_STOPWORDS = frozenset(STOPWORDS_EN) | frozenset(_GENERAL.split())

MAX_CALLS = 8
"""Maximum calls of the expert."""
_NUM_PHRASES = 6
"""How many phrases the expert tries at a time, of the text and of titles each."""


def keywords(text: str) -> str:
    """The words of a text that say what it is about, each once: without citations, stop words and general words.

    >>> keywords("Recently, neural models (Liu and Chen, 2015a; Wu et al., 2016) were used for parsing.")
    'neural models parsing'
    """
    words = [word.lower() for word in _WORD.findall(_CITATION.sub(" ", text))]
    kept = dict.fromkeys(word for word in words if word not in _STOPWORDS)
    return " ".join(kept) or text


def phrases(text: str) -> list[str]:
    """Runs of one to three words of a text that neither begin nor end with a stop word.

    >>> phrases("Parsing with neural models")
    ['parsing', 'neural', 'models', 'neural models', 'parsing with neural']
    """
    words = [word.lower() for word in _WORD.findall(_CITATION.sub(" ", text))]
    runs = [words[start : start + size] for size in (1, 2, 3) for start in range(len(words) - size + 1)]
    return list(dict.fromkeys(" ".join(run) for run in runs if not {run[0], run[-1]} & _STOPWORDS))


# Baselines


def bm25(reading: Reading) -> None:
    """The best papers for the text."""
    reading.show(reading.view.search(reading.query))


def bm25_expansion(reading: Reading) -> None:
    """The ten best papers for the text, then the references of the first, of the second ..."""
    _search_and_expand(reading, reading.query)


def bm25_expansion_keywords(reading: Reading) -> None:
    """The same for the keywords of the text."""
    _search_and_expand(reading, keywords(reading.query))


def cited_keywords(reading: Reading) -> None:
    """What is cited most by papers about the keywords of the text."""
    reading.show(reading.view.cited(keywords(reading.query)))


def _search_and_expand(reading: Reading, query: str) -> None:
    best = reading.view.search(query)[:10]
    reading.show(best)
    for paper in best:
        reading.show(reading.view.references(paper, query))


BASELINES: Mapping[str, Callable[[Reading], None]] = {
    "bm25": bm25,
    "bm25_expansion": bm25_expansion,
    "bm25_expansion_keywords": bm25_expansion_keywords,
    "cited_keywords": cited_keywords,
}
"""They read with pages as large as the limit."""


# The expert


@dataclass(frozen=True, kw_only=True)
class Move:
    """One call."""

    tool: str
    arguments: Mapping[str, Any]

    def ranking(self, reading: Reading) -> list[int]:
        """The papers that the call ranks."""
        view, given = reading.view, self.arguments
        if self.tool == "search":
            return view.search(given["query"])
        if self.tool == "cited":
            return view.cited(given["topic"])
        return view.references(reading.number(given["paper"]), reading.query)


def moves(reading: Reading, tools: Collection[str], rng: random.Random) -> list[Move]:
    """Calls that can be made now, the usual ones first: the keywords of the text, phrases of it, phrases of the titles
    that were shown last, references of papers that were shown."""
    titles = [reading.view.library.titles[paper] for paper in reading.papers[-reading.page :]]
    texts = [keywords(reading.query)]
    for source in (phrases(reading.query), [phrase for title in titles for phrase in phrases(title)]):
        texts += rng.sample(source, min(_NUM_PHRASES, len(source)))
    found = [
        Move(tool=tool, arguments={argument: text})
        for text in dict.fromkeys(texts)
        for tool, argument in (("cited", "topic"), ("search", "query"))
        if tool in tools
    ]
    numbers = range(1, len(reading.papers) + 1) if "expand" in tools else ()
    return found + [Move(tool="expand", arguments={"paper": number}) for number in numbers]


def expert(
    reading: Reading, relevant: Collection[int], tools: Collection[str], rng: random.Random
) -> Iterator[tuple[Move, str]]:
    """The calls of the expert with their answers: each time the call that shows most relevant papers, then fewest
    others; of equal ones the most usual. It reads as many papers as it may, in at most eight calls."""
    wanted = frozenset(relevant)
    for _ in range(MAX_CALLS):
        if reading.left < 1:
            return
        move = best_move(reading, wanted, moves(reading, tools, rng))
        if move is None:
            return
        yield move, reading.answer(move.ranking(reading))


def best_move(reading: Reading, wanted: frozenset[int], candidates: Sequence[Move]) -> Move | None:
    """The best of the candidates; None when no call shows anything new."""
    best, best_value = None, (0, 0)
    for move in candidates:
        shown = reading.preview(move.ranking(reading))
        found = len(wanted.intersection(shown))
        # Without a relevant paper, a full page is worth more than a short one.
        value = (found, -len(shown) if found else len(shown))
        if shown and (best is None or value > best_value):
            best, best_value = move, value
    return best
