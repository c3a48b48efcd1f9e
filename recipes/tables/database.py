"""SQL over one table: SQLite in memory, which reads only, with bounds on work, sizes and rows.

What a model writes is hostile input. SQLite's authorizer allows nothing but reading the table and a list of functions,
without recursion. The work is bounded by the instructions of SQLite's virtual machine, so that a query ends the same
way on any machine, and by seconds as a backstop. Texts have a maximum length, and sorting beyond the cache uses disk.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from typing import Any

from .table import Table, Value, shorten, value_text

MAX_QUERY = 2000
MAX_ROWS = 200
"""Rows that are read; fewer are shown."""
MAX_INSTRUCTIONS, MAX_SECONDS = 2_000_000, 3.0
_MAX_LENGTH = 20_000
_STRIDE = 5_000
"""Instructions between two looks at the bounds."""
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: _MAX_LENGTH,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: MAX_QUERY + 100,
    sqlite3.SQLITE_LIMIT_COLUMN: 200,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 60,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 10,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 20,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 0,
}
_FUNCTIONS = (
    "abs avg coalesce count dense_rank date first_value glob group_concat ifnull iif instr julianday lag last_value "
    "lead length like lower ltrim max min ntile nth_value nullif rank replace round row_number rtrim sign strftime "
    "substr substring sum total trim typeof upper"
)
FUNCTIONS = frozenset(_FUNCTIONS.split())
"""Functions a query may call."""


class QueryError(ValueError):
    """A query that was refused or failed; the message is for the model."""


class Database:
    """A table as a database for queries. Use it in one thread."""

    def __init__(self, table: Table) -> None:
        self._columns = table.names
        self._connection = connection = sqlite3.connect(":memory:", isolation_level=None, cached_statements=0)
        connection.execute("PRAGMA temp_store = FILE")
        columns = ", ".join(
            f'"{column.name}" {"NUMERIC" if column.is_number else "TEXT COLLATE NOCASE"}' for column in table.columns
        )
        connection.execute(f"CREATE TABLE t ({columns})")
        places = ", ".join("?" * len(table.columns))
        connection.execute("BEGIN")
        connection.executemany(f"INSERT INTO t VALUES ({places})", table.rows)
        connection.execute("COMMIT")
        for limit, value in _LIMITS.items():
            connection.setlimit(limit, value)
        connection.set_authorizer(_authorize)

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the database."""
        self._connection.close()

    def query(self, sql: str) -> list[tuple[Value, ...]]:
        """The rows that a query gives, at most `MAX_ROWS`. Raises QueryError with one line for the model."""
        if len(sql) > MAX_QUERY:
            raise QueryError(f"the query has {len(sql)} characters, more than {MAX_QUERY}")
        bounds = _Bounds()
        self._connection.set_progress_handler(bounds.exceeded, _STRIDE)
        try:
            cursor = self._connection.execute(sql)
            if cursor.description is None:
                raise QueryError("only SELECT is allowed")
            return [tuple(map(_plain, row)) for row in cursor.fetchmany(MAX_ROWS)]
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
            if isinstance(error, QueryError):
                raise
            raise QueryError(self._explain(str(error))) from None
        finally:
            self._connection.set_progress_handler(None, 0)

    def _explain(self, error: str) -> str:
        """SQLite's message, with what the model may do about it."""
        if error == "interrupted":
            return "the query takes too long: join less"
        if error.startswith("no such column"):
            return f"{error}. Columns: {', '.join(self._columns)}"
        if error.startswith("no such table"):
            return f"{error}. The table is t"
        if error.startswith(("not authorized", "recursive", "access to")):
            return f"{error}: only SELECT over t with the usual functions is allowed"
        return error


class _Bounds:
    """How much one query has done."""

    def __init__(self) -> None:
        self._calls = 0
        self._end = time.monotonic() + MAX_SECONDS

    def exceeded(self) -> int:
        self._calls += 1
        return int(self._calls * _STRIDE > MAX_INSTRUCTIONS or time.monotonic() > self._end)


def _authorize(action: int, first: str | None, second: str | None, schema: str | None, trigger: str | None) -> int:
    """SQLite asks this before it prepares each part of a query."""
    del schema, trigger
    if action == sqlite3.SQLITE_SELECT:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_READ:
        return sqlite3.SQLITE_DENY if (first or "").startswith(("sqlite_", "pragma_")) else sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in FUNCTIONS:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _plain(value: Any) -> Value:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def show_rows(rows: Sequence[Sequence[Value]], *, max_rows: int, max_chars: int) -> str:
    """The result as the model reads it: a line per row, cells between bars.

    >>> show_rows([("a", 1.0), ("b", None)], max_rows=1, max_chars=100)
    'a | 1\\n... 1 more row'
    """
    if not rows:
        return "(no rows)"
    lines: list[str] = []
    used = 0
    for row in rows[:max_rows]:
        line = " | ".join(shorten("NULL" if value is None else value_text(value), 120) for value in row)
        if lines and used + len(line) > max_chars:
            break
        lines.append(shorten(line, max_chars))
        used += len(line) + 1
    if rest := len(rows) - len(lines):
        count = f"{rest} or more" if len(rows) == MAX_ROWS else str(rest)
        lines.append(f"... {count} more row{'' if count == '1' else 's'}")
    return "\n".join(lines)
