"""Rows given as Python objects, written to a file: so that a run can be resumed, fingerprinted and looked at as any
other.

    save_rows([{"question": "2+2?", "answer": 4}], Path("runs/.data"), "train")   ->  runs/.data/train-6f1c....jsonl
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agent_r1.constraints import unusable_parts
from agent_r1.data.row_images import with_stored_images
from agent_r1.errors import DataError, ImageError, report_problems
from agent_r1.files import write_atomically
from agent_r1.types import Task

Row = Mapping[str, Any] | Task
"""A row: a mapping with the columns of a data file, or a `Task`."""
Rows = str | Path | Iterable[str | Path] | Iterable[Row]
"""Where rows come from: a file, several files, or rows: a list, a `datasets.Dataset`, a data frame, any iterable."""

_DIGITS = 12
_MAX_REPORTED = 10


def row_files(rows: Rows, folder: Path, name: str) -> list[str]:
    """The files that hold the rows: those that were given, or a new one in `folder` for rows given as objects."""
    if isinstance(rows, str | Path):
        return [str(rows)]
    if isinstance(rows, Mapping | Task):
        raise DataError(
            f"{name} data is a single {type(rows).__name__}; give a list of rows, or one split of a data set: "
            "data=dataset['train']"
        )
    if isinstance(rows, bytes) or not isinstance(rows, Iterable):
        raise DataError(
            f"{name} data must be a file, a list of files, or rows (a list of mappings or Tasks, or a "
            f"datasets.Dataset), found {rows!r:.80}"
        )
    entries = list(_rows_of_frame(rows))
    if entries and all(isinstance(entry, str | Path) for entry in entries):
        return [str(entry) for entry in entries]
    return [str(save_rows(entries, folder, name))]


def _rows_of_frame(rows: Any) -> Iterable[Any]:
    """The rows of a data frame of pandas or polars, iterating over which gives its columns; other rows as they are.

    A frame writes NaN or NaT where a row has no value in a column.
    """
    if hasattr(rows, "to_dicts"):
        return list(rows.to_dicts())
    if hasattr(rows, "to_dict") and hasattr(rows, "notna"):
        return list(rows.astype(object).where(rows.notna(), None).to_dict("records"))
    return rows  # type: ignore[no-any-return]


def save_rows(rows: Iterable[Any], folder: Path, name: str) -> Path:
    """Write rows to `<folder>/<name>-<hash of their content>.jsonl`, unless that file is there; their images to
    `<folder>/images`."""
    problems: list[str] = []
    lines: list[str] = []
    for number, row in enumerate(rows):
        try:
            plain = _plain_row(row, folder)
        except ImageError as error:
            problems.append(f"row {number}: {error}")
            continue
        if plain is None:
            problems.append(f"row {number} is a {type(row).__name__}: a row is a mapping or a Task")
            continue
        problem = next(unusable_parts(plain, f"row {number}"), None)
        if problem is not None:
            problems.append(problem)
            continue
        lines.append(json.dumps(plain, ensure_ascii=False) + "\n")
    if not lines and not problems:
        problems.append("there are no rows")
    report_problems(problems[:_MAX_REPORTED], DataError, f"the {name} data cannot be used:")
    text = "".join(lines)
    path = folder / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]}.jsonl"
    if not path.is_file():
        write_atomically(path, text)
    return path


def _plain_row(row: Any, folder: Path) -> dict[str, Any] | None:
    if isinstance(row, Task):
        # A task that names no flow leaves the choice to data.agent_name, as a row does.
        columns = {name: value for name, value in asdict(row).items() if value}
        if row.agent_name == "env_loop":
            del columns["agent_name"]
    elif isinstance(row, Mapping):
        columns = dict(row)
    else:
        return None
    columns = {name: _as_lists(with_stored_images(value, folder)) for name, value in columns.items()}
    if isinstance(columns.get("env_kwargs"), dict):
        # A `datasets.Dataset` gives every row every key of its column; those without a value are not there.
        absent = {key for key in ("env", "tools") if columns["env_kwargs"].get(key, "") is None}
        columns["env_kwargs"] = {key: value for key, value in columns["env_kwargs"].items() if key not in absent}
    return columns


def _as_lists(value: Any) -> Any:
    """Tuples and arrays as lists and mappings as dicts, which is what JSON has."""
    if hasattr(value, "dtype") and hasattr(value, "tolist"):  # numpy's arrays and numbers
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _as_lists(entry) for key, entry in value.items()}
    return [_as_lists(entry) for entry in value] if isinstance(value, list | tuple) else value
