"""Lists of trajectories: filters, sorting, pages and counts over the index."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agent_r1.view.index.filters import KINDS, MAX_ROWS, SORTS, Filters, Page
from agent_r1.view.index.scan import MAX_NAME_CHARS, clean
from agent_r1.view.index.words import search_phrases

_COLUMNS = (
    "task_id",
    "group_id",
    "member",
    "reward",
    "process_reward",
    "success",
    "stop_reason",
    "retries",
    "num_steps",
    "tool_calls",
    "tokens",
    "data_source",
    "repairs",
    "parse_errors",
)


@dataclass(slots=True)
class _Where:
    conditions: list[str] = field(default_factory=list)
    values: list[object] = field(default_factory=list)

    def add(self, condition: str, *values: object) -> None:
        self.conditions.append(condition)
        self.values += values

    @property
    def sql(self) -> str:
        return f" WHERE {' AND '.join(self.conditions)}" if self.conditions else ""


def list_rows(connection: sqlite3.Connection, filters: Filters, page: Page) -> dict[str, Any]:
    """A page of rows, their total, and how often each tool and stop reason occurs among what the other filters
    select."""
    _find_text(connection, filters.text)
    where = _where(connection, filters)
    counts = _count_by_tools_and_reason(connection, where)
    direction = " DESC" if page.sort.startswith("-") else ""
    column = SORTS[page.sort.lstrip("-")]
    order = ", ".join(dict.fromkeys([f"{column}{direction}", f"t.step{direction}", "t.kind", "t.file", "t.line"]))
    ids = [
        row[0]
        for row in connection.execute(
            f"SELECT t.id FROM trajectories t{where.sql} ORDER BY {order} LIMIT ? OFFSET ?",
            [*where.values, page.limit, page.offset],
        )
    ]
    by_tools = counts if not filters.tools else _counts_without(connection, filters, tools=())
    by_reason = counts if not filters.stop_reasons else _counts_without(connection, filters, stop_reasons=())
    sets = _toolsets(connection)
    return {
        "total": sum(counts.values()),
        "offset": page.offset,
        "limit": page.limit,
        "rows": rows_of(connection, ids),
        "facets": {
            "tools": _sums((name, count) for (tools, _), count in by_tools.items() for name in sets.get(tools, ())),
            "stop_reasons": _sums((reason, count) for (_, reason), count in by_reason.items()),
        },
    }


def rows_of(connection: sqlite3.Connection, ids: Sequence[int]) -> list[dict[str, Any]]:
    """The rows with these ids, in this order."""
    row_of: dict[int, dict[str, Any]] = {}
    for id_batch in (ids[start : start + MAX_ROWS] for start in range(0, len(ids), MAX_ROWS)):
        marks = ", ".join("?" * len(id_batch))
        for row in connection.execute(
            "SELECT t.*, f.name AS file_name, v.text AS preview, s.names AS tool_names, p.text AS prompt_text "
            "FROM trajectories t JOIN files f ON f.id = t.file LEFT JOIN previews v ON v.id = t.id "
            f"LEFT JOIN toolsets s ON s.id = t.toolset LEFT JOIN prompts p ON p.id = t.prompt WHERE t.id IN ({marks})",
            id_batch,
        ):
            row_of[row["id"]] = _row(row)
    return [row_of[row_id] for row_id in ids if row_id in row_of]


def find_key(connection: sqlite3.Connection, key: str) -> sqlite3.Row | None:
    """The index row of a trajectory; None when there is none."""
    stem, _, line = key.rpartition("-")
    if not (line.isascii() and line.isdigit() and len(line) < 16):
        return None
    row: sqlite3.Row | None = connection.execute(
        "SELECT t.*, f.name AS file_name FROM trajectories t JOIN files f ON f.id = t.file "
        "WHERE f.name = ? AND t.line = ?",
        (f"{clean(stem)}.jsonl", int(line)),
    ).fetchone()
    return row


def neighbours(connection: sqlite3.Connection, row: sqlite3.Row) -> dict[str, str | None]:
    """The keys of the trajectories before and after this one in its file."""
    stem = row["file_name"].removesuffix(".jsonl")
    keys: dict[str, str | None] = {}
    for name, comparison, order in (("previous", "<", "DESC"), ("next", ">", "ASC")):
        line = connection.execute(
            f"SELECT line FROM trajectories WHERE file = ? AND line {comparison} ? ORDER BY line {order} LIMIT 1",
            (row["file"], row["line"]),
        ).fetchone()
        keys[name] = None if line is None else f"{stem}-{line[0]}"
    return keys


def group_ids(connection: sqlite3.Connection, step: int, group: int, kind: str) -> list[int]:
    """The members of a group, in order; the greedy one last."""
    rows = connection.execute(
        "SELECT id FROM trajectories WHERE step = ? AND kind = ? AND group_id = ? "
        "ORDER BY file, member < 0, member, line LIMIT ?",
        (step, KINDS.index(kind), group, MAX_ROWS),
    )
    return [row[0] for row in rows]


def whole_groups(connection: sqlite3.Connection, count: int) -> list[list[int]]:
    """Groups spread evenly over all of them, with `count` trajectories or fewer; the ids of each."""
    groups: dict[tuple[int, int], list[int]] = {}
    order = "SELECT id, file, group_id FROM trajectories ORDER BY step, kind, file, group_id, member < 0, member, line"
    for row in connection.execute(order):
        groups.setdefault((row["file"], row["group_id"]), []).append(row["id"])
    everything = list(groups.values())
    chosen: dict[int, list[int]] = {}
    num_left, stride = count, len(everything)
    while stride >= 1 and num_left > 0:  # the first, the middle, the quarters ...: even for any count
        for place in range(0, len(everything), stride):
            if place not in chosen and len(everything[place]) <= num_left:
                chosen[place] = everything[place]
                num_left -= len(everything[place])
        stride //= 2
    return [chosen[place] for place in sorted(chosen)]


def task_steps(connection: sqlite3.Connection, task: str) -> tuple[list[dict[str, Any]], list[int]]:
    """How one task went over the steps of training, and the ids of its newest rollouts, oldest first."""
    task = _cut(task)
    steps = [
        {**dict(row), "kind": KINDS[row["kind"]]}
        for row in connection.execute(
            "SELECT step, kind, count(*) AS count, sum(failed) AS failed, avg(reward) FILTER (WHERE NOT failed) AS "
            "reward, min(reward) FILTER (WHERE NOT failed) AS reward_min, max(reward) FILTER (WHERE NOT failed) AS "
            "reward_max, avg(success) FILTER (WHERE NOT failed) AS success FROM trajectories WHERE task_id = ? "
            "GROUP BY step, kind, file ORDER BY step, kind",
            (task,),
        )
    ]
    ids = connection.execute(
        "SELECT id FROM trajectories WHERE task_id = ? ORDER BY step DESC, kind DESC, file, line DESC LIMIT ?",
        (task, MAX_ROWS),
    )
    return steps, [row[0] for row in ids][::-1]


def _where(connection: sqlite3.Connection, filters: Filters) -> _Where:
    where = _Where()
    bounds: list[tuple[str, object]] = [
        ("t.step >= ?", filters.step_min),
        ("t.step <= ?", filters.step_max),
        ("t.reward >= ?", filters.reward_min),
        ("t.reward <= ?", filters.reward_max),
        ("t.group_id = ?", filters.group),
        ("t.task_id = ?", None if filters.task is None else _cut(filters.task)),
        ("t.data_source = ?", None if filters.data_source is None else _cut(filters.data_source)),
        ("t.failed = ?", None if filters.failed is None else int(filters.failed)),
        ("t.kind = ?", None if filters.kind is None else KINDS.index(filters.kind)),
    ]
    for condition, value in bounds:
        if value is not None:
            where.add(condition, value)
    if filters.success is not None:
        where.add("t.success >= 1" if filters.success else "t.success < 1")
    if filters.stop_reasons:
        where.add(f"t.stop_reason IN ({_marks(filters.stop_reasons)})", *map(_cut, filters.stop_reasons))
    if filters.tools:
        wanted = {_cut(name) for name in filters.tools}
        sets = [number for number, names in _toolsets(connection).items() if wanted & set(names)]
        where.add(f"t.toolset IN ({_marks(sets)})", *sets)
    if search_phrases(filters.text):
        where.add("t.id IN (SELECT id FROM temp.matching)")
    return where


def _find_text(connection: sqlite3.Connection, text: str) -> None:
    """Put the trajectories with these words into a temporary table: several queries need them."""
    phrases = search_phrases(text)
    if not phrases:
        return
    matches = (
        "(t.id IN (SELECT rowid FROM texts WHERE texts MATCH ?) "
        "OR t.prompt IN (SELECT rowid FROM prompt_texts WHERE prompt_texts MATCH ?))"
    )
    connection.execute("DROP TABLE IF EXISTS temp.matching")
    connection.execute("CREATE TEMP TABLE matching (id INTEGER PRIMARY KEY)")
    connection.execute(
        f"INSERT INTO matching SELECT t.id FROM trajectories t WHERE {' AND '.join([matches] * len(phrases))}",
        [phrase for phrase in phrases for _ in range(2)],
    )


def _count_by_tools_and_reason(connection: sqlite3.Connection, where: _Where) -> dict[tuple[int, str], int]:
    """How many trajectories each set of tools and stop reason has: the total and both facets in one pass."""
    rows = connection.execute(
        f"SELECT t.toolset, t.stop_reason, count(*) FROM trajectories t{where.sql} GROUP BY t.toolset, t.stop_reason",
        where.values,
    )
    return {(tools, reason): count for tools, reason, count in rows}


def _counts_without(connection: sqlite3.Connection, filters: Filters, **removed: Any) -> dict[tuple[int, str], int]:
    return _count_by_tools_and_reason(connection, _where(connection, replace(filters, **removed)))


def _sums(entries: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Sums by name, the largest first; at most 200, since a model may invent any number of tool names."""
    sums: dict[str, int] = {}
    for name, count in entries:
        sums[name] = sums.get(name, 0) + count
    return dict(sorted(sums.items(), key=lambda entry: (-entry[1], entry[0]))[:200])


def _toolsets(connection: sqlite3.Connection) -> dict[int, list[str]]:
    return {number: _names(names) for number, names in connection.execute("SELECT id, names FROM toolsets")}


def _row(row: sqlite3.Row) -> dict[str, Any]:
    return {
        "key": f"{row['file_name'].removesuffix('.jsonl')}-{row['line']}",
        "step": row["step"],
        "kind": KINDS[bool(row["kind"])],
        **{name: row[name] for name in _COLUMNS},
        "failed": bool(row["failed"]),
        "tools": _names(row["tool_names"]),
        "preview": row["preview"] or "",
        "question": row["prompt_text"] or "",
    }


def _names(text: str | None) -> list[str]:
    """The names of a toolset, also of one that somebody else wrote."""
    try:
        names = json.loads(text or "[]")
    except ValueError:
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


def _marks(values: Iterable[object]) -> str:
    return ", ".join("?" for _ in values)


def _cut(name: str) -> str:
    """A name as it is in the index."""
    return clean(name)[:MAX_NAME_CHARS]
