"""The program of a training question: the best candidate whose result is the gold answer, if it is not spurious.

Many programs give the gold answer for a wrong reason. A program is kept only when no program with a much better score
gives another answer: when the words of the question alone would have led to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..database import Database, QueryError
from ..table import Table, Value, value_text
from .phrases import read_question
from .programs import candidates

MARGIN = 0.5
"""How much better a program with another answer may score."""
MIN_SCORE = 1.0
MAX_VALUES = 8
MAX_IGNORED = 5
"""A program that ignores more words of the question is taken for a coincidence."""

IsGold = Callable[[Sequence[str]], bool]


@dataclass(frozen=True, kw_only=True)
class Found:
    """A program that gives the gold answer."""

    sql: str
    kind: str
    values: tuple[str, ...]
    """What it gives."""


def find_program(question: str, table: Table, database: Database, is_gold: IsGold) -> Found | None:
    """The program of a question, or None."""
    best: float | None = None
    for candidate in candidates(read_question(question, table), table):
        if candidate.score < MIN_SCORE or (best is not None and candidate.score < best - MARGIN):
            return None
        try:
            values = values_of(database.query(candidate.sql))
        except QueryError:
            continue
        if not values:
            continue
        if len(values) <= MAX_VALUES and candidate.num_ignored <= MAX_IGNORED and is_gold(values):
            return Found(sql=candidate.sql, kind=candidate.kind, values=tuple(values))
        best = candidate.score if best is None else best
    return None


def values_of(rows: Sequence[Sequence[Value]]) -> list[str]:
    """The different values of a result's first column.

    >>> values_of([(1.0,), ("a",), ("a",), (None,)])
    ['1', 'a']
    """
    return list(dict.fromkeys(value_text(row[0]) for row in rows if row[0] is not None))
