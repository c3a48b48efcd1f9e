"""Candidate programs: short SQL queries that a reading of a question allows, each with a score.

An operation is tried only when a word of the question asks for it. The score counts the words of the question that a
program accounts for, in its conditions and in the names of its columns, and takes off for what it adds by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from ..table import Column, Table
from .phrases import Condition, Reading, words_of

MAX_CANDIDATES = 500
_PERSONS = "name player driver rider artist candidate winner actor director champion runner athlete team"
_PERSON = frozenset(_PERSONS.split())
_NAMES_ROWS = frozenset({"year", "rank", "no", "season", "date", "position", "place"})
"""Words in the names of columns whose numbers are not added up."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A program."""

    sql: str
    score: float
    kind: str
    num_ignored: int
    """Words of the question that mean something and that the program does not account for."""


@dataclass(frozen=True)
class _Where:
    conditions: tuple[Condition, ...] = ()

    @property
    def clause(self) -> str:
        return " WHERE " + " AND ".join(one.sql for one in self.conditions) if self.conditions else ""

    @property
    def places(self) -> frozenset[int]:
        return frozenset().union(*(one.places for one in self.conditions))

    @property
    def columns(self) -> set[str]:
        return {one.column for one in self.conditions}

    def also(self, condition: str) -> str:
        return f"{self.clause} AND {condition}" if self.conditions else f" WHERE {condition}"


class Candidates:
    """The candidates for one question."""

    def __init__(self, reading: Reading, table: Table) -> None:
        self.reading, self.table = reading, table
        self.columns = [column for column in table.columns if column.name != "id"]
        self.answers = [column for column in self.columns if not column.derived]
        self.numbers = [column for column in self.columns if column.is_number or column.derived == "date"]
        self.wheres = self._wheres()
        self.num_single = sum(len(where.conditions) == 1 for where in self.wheres)

    def __iter__(self) -> Iterator[Candidate]:
        makers = (
            *(self._lookups, self._counts, self._aggregates, self._superlatives, self._neighbours),
            *(self._frequent, self._choices, self._differences, self._others, self._compared),
        )
        for make in makers:
            yield from make()

    def _wheres(self) -> list[_Where]:
        conditions = [condition for condition in self.reading.conditions if not condition.is_bound]
        pairs = [
            pair
            for pair in combinations(conditions, 2)
            if not pair[0].places & pair[1].places and (pair[0].column != pair[1].column or not _both_exact(pair))
        ]
        return [_Where(), *(_Where((one,)) for one in conditions), *(_Where(pair) for pair in pairs[:10])]

    def _candidate(self, kind: str, sql: str, where: _Where, columns: Sequence[Column], bonus: float) -> Candidate:
        """A candidate; `columns` are those it uses besides the conditions', of which the first is the answer's."""
        mentions = [self.reading.mentions[column.name] for column in columns]
        named = frozenset().union(*mentions, *(self.reading.mentions[name] for name in where.columns))
        covered = (where.places | named) & self.reading.content
        score = len(covered) + bonus
        score -= 0.4 * len(where.conditions) + 0.3 * sum(not one.is_exact for one in where.conditions)
        for column, mention in zip(columns, mentions, strict=True):
            if not mention:
                score -= self._unnamed(column)
        return Candidate(sql=sql, score=score, kind=kind, num_ignored=len(self.reading.content - covered))

    def _unnamed(self, column: Column) -> float:
        """What a column costs that the question does not name."""
        first = next(iter(self.reading.words), "")
        header = set(column.header.lower().split())
        if "who" in self.reading.words and header & _PERSON:
            return 0.2
        if first in ("when", "what") and {"year", "date"} & header & set(self.reading.words):
            return 0.2
        return 0.6 if column is self.answers[0] or not column.is_number else 1.0

    def _lookups(self) -> Iterator[Candidate]:
        for where in self.wheres[1:]:
            for answer in self.answers:
                if answer.name not in where.columns:
                    yield self._candidate("look-up", f"SELECT {answer.name} FROM t{where.clause}", where, [answer], 0.0)

    def _counts(self) -> Iterator[Candidate]:
        if "count" not in self.reading.asks:
            return
        for where in self.wheres:
            counted = 1.0 if self._counted() - where.places else 0.0
            yield self._candidate("count", f"SELECT COUNT(*) FROM t{where.clause}", where, [], 1.0 + counted)
            for answer in self.answers:
                named = self.reading.mentions[answer.name]
                if named and answer.name not in where.columns and not answer.is_number:
                    sql = f"SELECT COUNT(DISTINCT {answer.name}) FROM t{where.clause}"
                    bonus = 1.5 if "distinct" in self.reading.asks else 0.4
                    yield self._candidate("count", sql, where, [answer], bonus)

    def _counted(self) -> frozenset[int]:
        """The position of the word after `how many`, where it names a column: rows are counted by it."""
        place = self.reading.words.index("many") + 1 if "many" in self.reading.words else -1
        return (
            frozenset({place}) if any(place in mention for mention in self.reading.mentions.values()) else frozenset()
        )

    def _aggregates(self) -> Iterator[Candidate]:
        names = {"sum": "SUM", "avg": "AVG", "max": "MAX", "min": "MIN"}
        for ask, name in names.items():
            if ask in self.reading.asks:
                for where in self.wheres:
                    for column in self.numbers:
                        names_rows = ask in ("sum", "avg") and _NAMES_ROWS & set(words_of(column.header))
                        if column.derived != "date" and column.name not in where.columns and not names_rows:
                            sql = f"SELECT {name}({column.name}) FROM t{where.clause}"
                            bonus = 1.5 if ask == "avg" else 0.8
                            yield self._candidate("aggregate", sql, where, [column], bonus)

    def _orders(self) -> list[tuple[Column | None, str, str]]:
        """Columns to order by with their directions; None is the order of the rows."""
        asks = self.reading.asks
        orders: list[tuple[Column | None, str, str]] = []
        orders += [(None, "id", "ASC")] if "first" in asks else []
        orders += [(None, "id", "DESC")] if "last" in asks else []
        up, down = "min" in asks or "first" in asks, "max" in asks or "last" in asks
        for column in self.numbers:
            orders += [(column, column.name, "DESC")] if down else []
            orders += [(column, column.name, "ASC")] if up else []
        return orders

    def _superlatives(self) -> Iterator[Candidate]:
        for where in self.wheres[: 1 + self.num_single]:
            for column, name, direction in self._orders():
                full = where.also(f"{name} IS NOT NULL") if self._has_nulls(name) else where.clause
                for answer in self.answers:
                    if answer.name != name and answer.name not in where.columns:
                        sql = f"SELECT {answer.name} FROM t{full} ORDER BY {name} {direction} LIMIT 1"
                        used = [answer] if column is None else [answer, column]
                        yield self._candidate("superlative", sql, where, used, 1.0)

    def _has_nulls(self, name: str) -> bool:
        return name != "id" and None in self.table.values(name)

    def _neighbours(self) -> Iterator[Candidate]:
        steps = [(sign, ask) for sign, ask in (("+", "next"), ("-", "previous")) if ask in self.reading.asks]
        for condition in self.reading.conditions:
            for sign, _ in steps:
                for answer in self.answers:
                    where = _Where((condition,))
                    sql = f"SELECT {answer.name} FROM t WHERE id = (SELECT id FROM t{where.clause}) {sign} 1"
                    same = 0.0 if answer.name != condition.column else 0.4
                    yield self._candidate("neighbour", sql, where, [answer], 0.8 + same)

    def _frequent(self) -> Iterator[Candidate]:
        for ask, direction in (("max", "DESC"), ("min", "ASC")):
            if ask in self.reading.asks:
                for answer in self.answers:
                    if self.reading.mentions[answer.name]:
                        name = answer.name
                        sql = f"SELECT {name} FROM t GROUP BY {name} ORDER BY COUNT(*) {direction} LIMIT 1"
                        yield self._candidate("most frequent", sql, _Where(), [answer], 0.8)

    def _pairs(self) -> Iterator[tuple[Condition, Condition]]:
        ordered = sorted(self.reading.conditions, key=lambda condition: min(condition.places))
        for one, other in combinations(ordered, 2):
            if one.column == other.column and _both_exact((one, other)) and not one.places & other.places:
                yield one, other

    def _choices(self) -> Iterator[Candidate]:
        if "or" not in self.reading.asks:
            return
        for one, other in self._pairs():
            where = _Where((one, other))
            for column, name, direction in self._orders():
                sql = (
                    f"SELECT {one.column} FROM t WHERE {one.column} IN ({one.value}, {other.value}) "
                    f"ORDER BY {name} {direction} LIMIT 1"
                )
                yield self._candidate("choice", sql, where, [] if column is None else [column], 1.5)
            if "max" in self.reading.asks:
                often = 2.2 if {"often", "times", "most"} & set(self.reading.words) else 1.2
                sql = (
                    f"SELECT {one.column} FROM t WHERE {one.column} IN ({one.value}, {other.value}) "
                    f"GROUP BY {one.column} ORDER BY COUNT(*) DESC LIMIT 1"
                )
                yield self._candidate("choice", sql, where, [], often)

    def _differences(self) -> Iterator[Candidate]:
        if "difference" not in self.reading.asks:
            return
        numbers = [column for column in self.numbers if column.derived != "date"]
        for one, other in self._pairs():
            for column in numbers:
                if column.name != one.column:
                    parts = " - ".join(f"(SELECT {column.name} FROM t WHERE {each.sql})" for each in (one, other))
                    yield self._candidate("difference", f"SELECT ABS({parts})", _Where((one, other)), [column], 1.2)
        for where in self.wheres[: 1 + self.num_single]:
            for column in numbers:
                sql = f"SELECT MAX({column.name}) - MIN({column.name}) FROM t{where.clause}"
                yield self._candidate("difference", sql, where, [column], 0.2)

    def _others(self) -> Iterator[Candidate]:
        if "others" not in self.reading.asks:
            return
        for condition in self.reading.conditions:
            if not condition.is_exact or not condition.value:
                continue
            where = _Where((condition,))
            for column in self.answers:
                if column.name != condition.column:
                    sql = (
                        f"SELECT {condition.column} FROM t WHERE {column.name} = (SELECT {column.name} FROM t"
                        f"{where.clause}) AND {condition.column} != {condition.value}"
                    )
                    yield self._candidate("others", sql, where, [column], 0.8)

    def _compared(self) -> Iterator[Candidate]:
        asks = self.reading.asks
        if "count" not in asks or "than" not in self.reading.words:
            return
        signs = [sign for ask, sign in (("max", ">"), ("min", "<")) if ask in asks]
        for condition in self.reading.conditions:
            where = _Where((condition,))
            for column in self.numbers:
                for sign in signs:
                    if column.name != condition.column:
                        inner = f"(SELECT {column.name} FROM t{where.clause})"
                        sql = f"SELECT COUNT(*) FROM t WHERE {column.name} {sign} {inner}"
                        yield self._candidate("comparison", sql, where, [column], 1.2)


def _both_exact(pair: Sequence[Condition]) -> bool:
    return all(one.is_exact and one.value for one in pair)


def candidates(reading: Reading, table: Table) -> list[Candidate]:
    """The candidates for a question, best first."""
    unique: dict[str, Candidate] = {}
    for candidate in Candidates(reading, table):
        known = unique.get(candidate.sql)
        if known is None or known.score < candidate.score:
            unique[candidate.sql] = candidate
    return sorted(unique.values(), key=lambda one: (-one.score, len(one.sql), one.sql))[:MAX_CANDIDATES]
