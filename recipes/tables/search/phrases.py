"""What a question says about a table: the columns it names, conditions on rows, and words that ask for an operation."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ..cells import as_number
from ..table import Column, Table, Value, value_text

_STOP = (
    "a an the of in on at to for from by with and or is are was were be been do does did has have had what which who "
    "whom whose when where how many much that this these those there it its their his her he she they name list listed "
    "tell me give table chart only according as not than any all each other more most least number total time times"
)
STOP = frozenset(_STOP.split())
TRIGGERS = {
    "max": "most highest largest biggest greatest longest best latest tallest maximum more higher larger longer "
    "greater later newest heaviest fastest top max bigger taller oldest better often frequently deepest",
    "min": "least lowest smallest fewest shortest worst earliest youngest minimum less lower fewer earlier smaller "
    "shorter lightest oldest slowest first min worse best top",
    "first": "first top earliest beginning initial start",
    "last": "last bottom final latest recent end finally recently",
    "next": "after next following below follows follow followed subsequent proceeding later",
    "previous": "before previous prior above preceding preceded precedes previously",
    "count": "many number count amount times",
    "sum": "total sum combined altogether together overall many all",
    "avg": "average mean averaged",
    "difference": "difference more less fewer longer between than apart long years many higher",
    "others": "other besides else also same another",
    "distinct": "different unique distinct separate",
    "or": "or",
}
_TRIGGERS = {name: frozenset(words.split()) for name, words in TRIGGERS.items()}
_WORD = re.compile(r"[a-z0-9]+(?:[.,][0-9]+)*")
_NAMES = "one two three four five six seven eight nine ten eleven twelve"
_COUNTS = {name: number for number, name in enumerate(_NAMES.split(), start=1)}
_ABOVE = frozenset({"more", "over", "above", "greater", "exceeding", "higher", "after", "since", "larger", "least"})
_BELOW = frozenset({"less", "under", "below", "fewer", "before", "lower", "smaller", "most", "prior"})
_OR_MORE, _OR_LESS = {"more", "higher", "greater", "above"}, {"less", "fewer", "below", "lower"}
_MAX_WORDS = 8
_MAX_CONDITIONS = 9


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A condition on rows, and the words of the question that say it."""

    sql: str
    column: str
    places: frozenset[int]
    """Positions of its words in the question."""
    is_exact: bool = True
    """It names a whole cell."""
    value: str = ""
    """The cell, as a literal of SQL."""
    is_bound: bool = False
    """The question says `after` or `more than` this value: it names a row, but not the rows that are asked for."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a question says."""

    words: tuple[str, ...]
    conditions: tuple[Condition, ...]
    mentions: dict[str, frozenset[int]]
    """Column -> positions of the words that name it."""
    content: frozenset[int]
    """Positions of words that mean something here."""
    asks: frozenset[str] = field(default_factory=frozenset)
    """Operations that a word asks for."""


def words_of(text: str) -> list[str]:
    """The words of a text, without accents and case.

    >>> words_of("São Paulo's 1,234 goals")
    ['sao', 'paulo', 's', '1,234', 'goals']
    """
    return [match.group() for match in _WORD.finditer(_plain(text))]


def _plain(text: str) -> str:
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in decomposed if unicodedata.category(letter) != "Mn").lower()


def stem(word: str) -> str:
    """A word without the end of its plural.

    >>> stem("countries"), stem("goals"), stem("class")
    ('country', 'goal', 'class')
    """
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def literal(value: str) -> str:
    """A text as a literal of SQL.

    >>> literal("O'Neil")
    "'O''Neil'"
    """
    return "'" + value.replace("'", "''") + "'"


def read_question(question: str, table: Table) -> Reading:
    """What a question says about a table."""
    words = words_of(question)
    conditions = _cell_conditions(words, table) + _number_conditions(words, table)
    asks = frozenset(name for name, triggers in _TRIGGERS.items() if triggers.intersection(words))
    mentions = {column.name: _mention(column, words) for column in table.columns}
    content = frozenset(place for place, word in enumerate(words) if word not in STOP)
    return Reading(
        words=tuple(words), conditions=tuple(_best(conditions)), mentions=mentions, content=content, asks=asks
    )


def _mention(column: Column, words: Sequence[str]) -> frozenset[int]:
    names = {stem(word) for word in words_of(column.header)} - STOP
    return frozenset(place for place, word in enumerate(words) if stem(word) in names and word not in STOP)


def _cell_conditions(words: Sequence[str], table: Table) -> list[Condition]:
    """Cells, or parts of them, that the question repeats."""
    places = {
        tuple(words[start:end]): frozenset(range(start, end))
        for start in range(len(words))
        for end in range(start + 1, min(len(words), start + _MAX_WORDS) + 1)
    }
    found: list[Condition] = []
    for index, column in enumerate(table.columns):
        if column.is_number or column.derived:
            continue
        seen: set[str] = set()
        for row in table.rows:
            cell = value_text(row[index])
            if cell and cell.lower() not in seen:
                seen.add(cell.lower())
                found += _matches(column.name, cell, places)
    return found


def _matches(name: str, cell: str, places: dict[tuple[str, ...], frozenset[int]]) -> Iterator[Condition]:
    plain = _plain(cell)
    if len(plain) > 200:
        return
    spans = [match.span() for match in _WORD.finditer(plain)]
    cell_words = [plain[start:end] for start, end in spans]
    whole = places.get(tuple(cell_words))
    if whole is not None and any(word not in STOP for word in cell_words):
        value = literal(cell)
        yield Condition(sql=f"{name} = {value}", column=name, places=whole, value=value)
        return
    if len(plain) != len(cell):  # positions would not be those of the cell
        return
    for size in range(min(_MAX_WORDS, len(cell_words) - 1), 0, -1):
        for start in range(len(cell_words) - size + 1):
            part = tuple(cell_words[start : start + size])
            if part in places and any(word not in STOP and len(word) > 2 for word in part) and part[0] not in STOP:
                text = cell[spans[start][0] : spans[start + size - 1][1]]
                sql = f"{name} LIKE {literal(f'%{text}%')}"
                yield Condition(sql=sql, column=name, places=places[part], is_exact=False)
                return


def _number_conditions(words: Sequence[str], table: Table) -> list[Condition]:
    """Numbers of the question that are in a column of numbers, or that bound it."""
    found = []
    for place, word in enumerate(words):
        number = float(word.replace(",", "")) if _is_plain(word) else _COUNTS.get(word)
        if number is None:
            continue
        sign, places = _comparison(words, place), frozenset({place})
        for column in table.columns[1:]:
            for sql, value in _bounds(column, table.values(column.name), number, sign, word[0].isdigit()):
                bound = bool(value and sign)
                condition = Condition(sql=sql, column=column.name, places=places, value=value, is_bound=bound)
                found.append(replace(condition, is_exact=bool(value)))
    return found


def _bounds(
    column: Column, values: Sequence[Value], number: float, sign: str, in_digits: bool
) -> Iterator[tuple[str, str]]:
    """Conditions on one column that a number may mean, each with the value that it names, if it names one."""
    text = value_text(as_number(number))
    if column.is_number:
        known = [value for value in values if isinstance(value, int | float)]
        if sign and known and min(known) <= number <= max(known):
            yield f"{column.name} {sign} {text}", ""
        if number in known:
            yield f"{column.name} = {text}", text
    elif column.derived == "date" and 1000 <= number < 2100 and in_digits:
        if sign:
            yield f"{column.name} {sign} '{text}'", ""
        elif any(str(value).startswith(text) for value in values if value is not None):
            yield f"{column.name} LIKE '{text}%'", ""


def _is_plain(word: str) -> bool:
    return re.fullmatch(r"\d{1,3}(?:,\d{3})+|\d{1,12}(?:\.\d+)?", word) is not None


def _comparison(words: Sequence[str], place: int) -> str:
    """The sign that the words before and after a number say; empty where they say none.

    >>> _comparison(["more", "than", "5"], 2), _comparison(["at", "least", "5"], 2), _comparison(["5", "goals"], 0)
    ('>', '>=', '')
    """
    before, after = list(words[max(0, place - 3) : place]), list(words[place + 1 : place + 4])
    bound = after[1] if after[:1] == ["or"] and len(after) > 1 else ""
    if bound in _OR_MORE or before[-2:] == ["at", "least"]:
        return ">="
    if bound in _OR_LESS or before[-2:] == ["at", "most"]:
        return "<="
    if before[-1:] == ["since"]:
        return ">="
    if _ABOVE.intersection(before):
        return ">"
    return "<" if _BELOW.intersection(before) else ""


def _best(conditions: Sequence[Condition]) -> list[Condition]:
    """The conditions with most words, without those that another of the same column includes."""
    ranked = sorted(conditions, key=lambda one: (-len(one.places), not one.is_exact, len(one.sql)))
    kept: list[Condition] = []
    for condition in ranked:
        covered = any(
            condition.places < other.places and (condition.column == other.column or other.is_exact) for other in kept
        )
        if not covered and all(condition.sql != other.sql for other in kept):
            kept.append(condition)
    return kept[:_MAX_CONDITIONS]
