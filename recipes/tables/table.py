"""A table with typed columns: what SQL and Python work on, and what the model is shown of it.

Column names become identifiers. A column whose cells are all numbers is numeric. For other columns whose cells mostly
are dates, or have a number in them, there is a derived column: `opened_date` beside `opened`, `score_num` beside
`score`. Rows are numbered by `id`, from 1.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .cells import EMPTY, first_number, number_text, read_amount, read_date, read_number

Value = str | int | float | None

MAX_CELL = 2000
"""Longer cells are cut."""
SHOWN_CELL, SHOWN_TABLE = 32, 900
"""Characters of a cell and of a table in the prompt."""
_DERIVED = 0.7
"""The share of the cells that must be dates, or have a number, for a derived column."""
_MAX_NAME = 28
_RESERVED = (
    "add all alter and as asc between by case cast check collate commit constraint create cross "
    "default delete desc distinct drop else escape except exists foreign from group having in index "
    "inner insert intersect into is isnull join left like limit natural not notnull null of on or "
    "order outer primary references right select set table temp then to transaction union unique "
    "update using values view when where window with"
)
_KEYWORDS = frozenset(_RESERVED.split())


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column."""

    name: str
    is_number: bool
    header: str
    """What the table calls it."""
    derived: str = ""
    """`date` or `num`: read from the cells of another column."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table whose first column is `id`."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]

    def values(self, name: str) -> list[Value]:
        """The cells of a column."""
        index = self.names.index(name)
        return [row[index] for row in self.rows]


def table_text(header: Sequence[str], rows: Sequence[Sequence[str]], *, financial: bool = False) -> str:
    """A table as the text that a row of the data carries."""
    cut = [[_clean(cell) for cell in row] for row in rows]
    return json.dumps({"header": list(header), "rows": cut, "financial": financial}, ensure_ascii=False)


@lru_cache(maxsize=4096)
def read_table(text: str) -> Table:
    """The table that `table_text` wrote."""
    given = json.loads(text)
    return make_table(given["header"], given["rows"], financial=given["financial"])


def make_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, financial: bool = False) -> Table:
    """A table from texts. In a financial one `$ 1,200` and `(12)` are numbers.

    >>> table = make_table(["Year", "Date"], [["1990", "7 May 1990"], ["1991", "8 May 1991"]])
    >>> table.names, table.rows[0]
    (['id', 'year', 'date', 'date_date'], (1, 1990, '7 May 1990', '1990-05-07'))
    """
    width = len(header)
    cells = [[_clean(row[index]) if index < len(row) else "" for row in rows] for index in range(width)]
    names = identifiers(header)
    columns = [Column(name="id", is_number=True, header="")]
    values: list[Sequence[Value]] = [range(1, len(rows) + 1)]
    derived: list[tuple[Column, list[Any]]] = []
    for name, title, texts in zip(names, header, cells, strict=True):
        numbers = _all(texts, read_amount if financial else read_number, 1.0)
        columns.append(Column(name=name, is_number=numbers is not None, header=title))
        values.append(numbers if numbers is not None else [text or None for text in texts])
        if numbers is None:
            derived += _derived(name, title, texts)
    taken = set(names)
    for column, found in derived:
        if column.name not in taken:
            columns.append(column)
            values.append(found)
    return Table(columns=tuple(columns), rows=tuple(zip(*values, strict=True)))


def _derived(name: str, title: str, texts: Sequence[str]) -> list[tuple[Column, list[Any]]]:
    readers: dict[str, Callable[[str], Any]] = {"date": read_date, "num": first_number}
    for kind, reader in readers.items():
        found = _all(texts, reader, _DERIVED)
        if found is not None and len(set(found)) > 1:
            column = Column(name=f"{name}_{kind}", is_number=kind == "num", header=title, derived=kind)
            return [(column, found)]
    return []


def _all(texts: Sequence[str], reader: Callable[[str], Any], share: float) -> list[Any] | None:
    """What a reader gets from the cells, if that is enough of those that are not empty."""
    found = [None if text.lower() in EMPTY else reader(text) for text in texts]
    filled = sum(text.lower() not in EMPTY for text in texts)
    read = sum(value is not None for value in found)
    return found if read and read >= share * filled else None


def identifiers(header: Sequence[str]) -> list[str]:
    """Different names for columns, which SQL and Python accept as they are.

    >>> identifiers(["# of Games", "2019", "", "Order", "Order"])
    ['of_games', 'y2019', 'col3', 'order_', 'order_2']
    """
    names: list[str] = []
    for number, title in enumerate(header, start=1):
        plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
        name = re.sub(r"[^a-z0-9]+", "_", plain.lower())[:_MAX_NAME].strip("_") or f"col{number}"
        if name[0].isdigit():
            name = f"y{name}" if re.match(r"\d{4}(?!\d)", name) else f"c_{name}"
        unique = f"{name}_" if name in _KEYWORDS else name
        count = 1
        while unique in names or unique in ("id", "t"):
            count += 1
            unique = f"{name}_{count}"
        names.append(unique)
    return names


def show(table: Table, budget: int = SHOWN_TABLE) -> str:
    """What the model reads: the columns, the first rows as far as `budget` goes, and the last one."""
    base = [column for column in table.columns if not column.derived]
    derived = [column.name for column in table.columns if column.derived]
    lines = [" | ".join(column.name + (" (number)" if column.is_number else "") for column in base)]
    used, texts = len(lines[0]), list[str]()
    for row in table.rows:
        text = _row_text(row[: len(base)])
        if texts and used + len(text) >= budget:
            break
        used += len(text) + 1
        texts.append(text)
    lines += texts
    if hidden := len(table.rows) - len(texts):
        lines += [f"... {hidden - 1} more rows ..."] if hidden > 1 else []
        lines.append(_row_text(table.rows[-1][: len(base)]))
    if derived:
        lines.append(f"Also: {', '.join(derived)}")
    return "\n".join(lines)


def _row_text(values: Sequence[Value]) -> str:
    return " | ".join(shorten(value_text(value)) for value in values)


def value_text(value: Value) -> str:
    """A value as text; nothing for none."""
    if value is None:
        return ""
    return value if isinstance(value, str) else number_text(value)


def shorten(text: str, size: int = SHOWN_CELL) -> str:
    """A text of at most so many characters."""
    return text if len(text) <= size else text[: size - 1].rstrip() + "…"


def _clean(cell: str) -> str:
    return " ".join(str(cell).split())[:MAX_CELL]
