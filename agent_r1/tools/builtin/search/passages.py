"""Passages: read from JSONL or parquet files, and kept on disk so that any one can be fetched without the others."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agent_r1.codec import FileRow, iterate_rows
from agent_r1.errors import DataError, did_you_mean

_TEXT_FILE = "passages.jsonl"
_STARTS_FILE = "passages.starts.npy"
_MAX_REPORTED = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """A piece of text in an index."""

    passage_id: str
    """Its id in the file, else its number across files."""
    title: str
    """What it is about; may be empty."""
    text: str
    """The text."""

    @property
    def searchable(self) -> str:
        """The indexed text: title and text."""
        return f"{self.title}\n{self.text}" if self.title else self.text


@dataclass(frozen=True, kw_only=True, slots=True)
class PassageFields:
    """Which fields of a row hold what."""

    passage_id: str = "id"
    """The id; a row without one gets its number."""
    title: str = "title"
    """The title; a row without one has none."""
    text: str = "text"
    """The text; every row needs one."""


def read_passages(paths: Sequence[str | Path], fields: PassageFields | None = None) -> Iterator[Passage]:
    """All passages of all files, in order; passages without an id are numbered across files.

    `{"id": 7, "title": "Tea", "text": "A drink."}` -> `Passage(passage_id="7", title="Tea", text="A drink.")`
    """
    fields = fields or PassageFields()
    number = 0
    problems: list[str] = []
    for path in map(Path, paths):
        for row in iterate_rows(path):
            problem = _problem(row, fields)
            if problem is not None:
                problems.append(f"{path}, row {row.number}: {problem}")
                if len(problems) >= _MAX_REPORTED:
                    break
            elif not problems:
                yield _passage(row.value, fields, number)
            number += 1
    if problems:
        raise DataError("the passages cannot be used:\n" + "\n".join(f"  - {problem}" for problem in problems))


def _problem(row: FileRow, fields: PassageFields) -> str | None:
    if row.problem is not None:
        return row.problem
    if not isinstance(row.value, Mapping):
        return f"expected an object, found {type(row.value).__name__}"
    if fields.text not in row.value:
        return f"the field '{fields.text}' is missing. {did_you_mean(fields.text, map(str, row.value))}"
    if not isinstance(row.value[fields.text], str):
        return f"the field '{fields.text}' must be text, found {type(row.value[fields.text]).__name__}"
    return None


def _passage(row: Mapping[str, Any], fields: PassageFields, number: int) -> Passage:
    passage_id, title = row.get(fields.passage_id), row.get(fields.title)
    return Passage(
        passage_id=str(number if passage_id is None else passage_id),
        title="" if title is None else str(title),
        text=row[fields.text],
    )


def write_passages(passages: Iterable[Passage], folder: Path) -> Iterator[Passage]:
    """Write passages into `folder` and yield them, so that they need not all be in memory."""
    starts = [0]
    with (folder / _TEXT_FILE).open("wb") as file:
        for passage in passages:
            record = [passage.passage_id, passage.title, passage.text]
            line = json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
            file.write(line)
            starts.append(starts[-1] + len(line))
            yield passage
    np.save(folder / _STARTS_FILE, np.array(starts, dtype=np.int64))


class StoredPassages(Sequence[Passage]):
    """The passages of an index folder, memory-mapped: `stored[7]` reads one line."""

    def __init__(self, folder: Path) -> None:
        self._starts = np.load(folder / _STARTS_FILE, mmap_mode="r").view(np.ndarray)
        with (folder / _TEXT_FILE).open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, number: Any) -> Any:
        line = self._bytes[self._starts.item(number) : self._starts.item(number + 1)]
        passage_id, title, text = json.loads(line.decode("utf-8", "surrogatepass"))
        return Passage(passage_id=passage_id, title=title, text=text)
