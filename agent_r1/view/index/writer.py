"""Write the index rows of one trajectory file."""

from __future__ import annotations

import hashlib
import json
import sqlite3

from agent_r1.view.index.scan import PREVIEW_CHARS, Entry, decode_short, entry_of
from agent_r1.view.index.words import as_words

BATCH = 256
"""Rows per statement."""


class FileWriter:
    """Writes the entries of one file in batches."""

    def __init__(self, connection: sqlite3.Connection, file: int, step: int | None) -> None:
        self._connection = connection
        self._file = file
        self._step = step
        self._corrupt = 0
        [(self._next_id,)] = connection.execute(
            "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'trajectories'), 0) + 1"
        )
        self._toolsets: dict[tuple[str, ...], int] = {}
        self._prompts: dict[str, int] = {}
        self._rows: list[tuple[object, ...]] = []
        self._previews: list[tuple[int, str]] = []
        self._texts: list[tuple[int, str]] = []

    def add(self, number: int, start: int, length: int, line: bytes | None) -> None:
        """Add a line of the file."""
        try:
            entry = None if line is None else entry_of(decode_short(line))
        except (ValueError, TypeError, AttributeError):
            entry = None
        if entry is None:
            self._corrupt += 1
            return
        row_id, self._next_id = self._next_id, self._next_id + 1
        self._rows.append(self._row(entry, row_id, number, start, length))
        self._previews.append((row_id, entry.preview))
        self._texts.append((row_id, as_words(entry.text)))
        if len(self._rows) >= BATCH:
            self._flush()

    def finish(self) -> None:
        """Write what is left."""
        self._flush()
        self._connection.execute("UPDATE files SET corrupt = ? WHERE id = ?", (self._corrupt, self._file))

    def _row(self, entry: Entry, row_id: int, number: int, start: int, length: int) -> tuple[object, ...]:
        return (
            row_id,
            self._file,
            number,
            start,
            length,
            entry.policy_step if self._step is None else self._step,
            int(self._step is None),
            entry.task_id,
            entry.group_id,
            entry.member,
            entry.reward,
            entry.process_reward,
            entry.success,
            entry.stop_reason,
            int(entry.failed),
            entry.retries,
            entry.num_steps,
            entry.tool_calls,
            self._toolset(entry.tools),
            entry.tokens,
            entry.data_source,
            entry.repairs,
            entry.parse_errors,
            self._prompt(entry.prompt),
        )

    def _flush(self) -> None:
        if self._rows:
            marks = ", ".join("?" * len(self._rows[0]))
            self._connection.executemany(f"INSERT INTO trajectories VALUES ({marks})", self._rows)
        self._connection.executemany("INSERT INTO previews VALUES (?, ?)", self._previews)
        self._connection.executemany("INSERT INTO texts (rowid, body) VALUES (?, ?)", self._texts)
        self._rows, self._previews, self._texts = [], [], []

    def _toolset(self, names: tuple[str, ...]) -> int:
        if names not in self._toolsets:
            text = json.dumps(names)
            self._connection.execute("INSERT OR IGNORE INTO toolsets (names) VALUES (?)", (text,))
            [(toolset_id,)] = self._connection.execute("SELECT id FROM toolsets WHERE names = ?", (text,))
            self._toolsets[names] = toolset_id
        return self._toolsets[names]

    def _prompt(self, text: str) -> int:
        if text not in self._prompts:
            digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
            row = self._connection.execute("SELECT id FROM prompts WHERE digest = ?", (digest,)).fetchone()
            if row is None:
                cursor = self._connection.execute(
                    "INSERT INTO prompts (digest, text) VALUES (?, ?)", (digest, text[:PREVIEW_CHARS])
                )
                row = (int(cursor.lastrowid or 0),)
                self._connection.execute(
                    "INSERT INTO prompt_texts (rowid, body) VALUES (?, ?)", (row[0], as_words(text))
                )
            self._prompts[text] = row[0]
        return self._prompts[text]


def forget_file(connection: sqlite3.Connection, name: str) -> None:
    """Remove the rows of a file. Its words stay in the search index, where they match no row."""
    rows = "SELECT id FROM trajectories WHERE file = (SELECT id FROM files WHERE name = ?)"
    connection.execute(f"DELETE FROM previews WHERE id IN ({rows})", (name,))
    connection.execute("DELETE FROM trajectories WHERE file = (SELECT id FROM files WHERE name = ?)", (name,))
    connection.execute("DELETE FROM files WHERE name = ?", (name,))
