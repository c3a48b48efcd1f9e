"""The index of a run's trajectories: an SQLite file beside the run, one row per trajectory.

It says in which file, at which offset and how long each trajectory is, and has what lists, filters and searches need.
`update` reads files that are new or rewritten; an index that cannot be used is made again. A run folder that cannot be
written has its index in the user's cache folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from agent_r1.errors import DataError, StorageError
from agent_r1.view.inside import Signature, list_inside, open_inside, signature_of
from agent_r1.view.scan import PREVIEW_CHARS, Entry, decode_short, entry_of, lines_of
from agent_r1.view.words import as_words

INDEX_NAME = "view_index.sqlite"
FOLDER = "trajectories"
_VERSION = 1
_BATCH = 256

_SCHEMA = (
    "CREATE TABLE files (id INTEGER PRIMARY KEY, name TEXT UNIQUE, size INTEGER, mtime_ns INTEGER, corrupt INTEGER)",
    "CREATE TABLE trajectories (id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER, line INTEGER, start INTEGER, "
    "length INTEGER, step INTEGER, kind INTEGER, task_id TEXT, group_id INTEGER, member INTEGER, reward REAL, "
    "process_reward REAL, success REAL, stop_reason TEXT, failed INTEGER, retries INTEGER, num_steps INTEGER, "
    "tool_calls INTEGER, toolset INTEGER, tokens INTEGER, data_source TEXT, repairs INTEGER, parse_errors INTEGER, "
    "prompt INTEGER)",
    "CREATE INDEX by_line ON trajectories (file, line)",
    "CREATE INDEX by_task ON trajectories (task_id)",
    "CREATE INDEX by_step ON trajectories (step, kind, group_id)",
    "CREATE TABLE previews (id INTEGER PRIMARY KEY, text TEXT)",
    "CREATE TABLE toolsets (id INTEGER PRIMARY KEY, names TEXT UNIQUE)",
    "CREATE TABLE prompts (id INTEGER PRIMARY KEY, digest BLOB UNIQUE, text TEXT)",
    "CREATE VIRTUAL TABLE texts USING fts5(body, content='')",
    "CREATE VIRTUAL TABLE prompt_texts USING fts5(body, content='')",
)
_OF_FTS = ("_data", "_idx", "_content", "_docsize", "_config")


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexState:
    """How far an index is."""

    trajectories: int = 0
    """How many are in it."""
    corrupt_lines: int = 0
    """Lines that could not be read."""
    complete: bool = False
    """Whether it has all files that were there when it was last updated."""
    progress: float = 0.0
    """The share of the bytes that are in it."""
    problems: tuple[str, ...] = ()
    """What was left out, in words."""


class TrajectoryIndex:
    """The index of one run folder. `update` may run in another thread than the queries."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path: Path | None = None
        self._placing = threading.Lock()
        self._updating = threading.Lock()
        self._state = IndexState()
        self._files: dict[str, Signature] = {}
        self.changes = 0
        """Increases with every change."""

    @property
    def state(self) -> IndexState:
        """How far it is."""
        return self._state

    def update(self, stop: threading.Event | None = None) -> bool:
        """Bring the index up to date with the files; whether anything changed. Ends early when `stop` is set."""
        with self._updating:
            files, problems = list_inside(self._folder, FOLDER, ".jsonl")
            if self._state.complete and files == self._files and self._state.problems == tuple(problems):
                return False
            try:
                self._bring_up_to_date(files, problems, stop)
            except sqlite3.DatabaseError:
                self._discard()
                self._bring_up_to_date(files, problems, stop)
            return True

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection for queries."""
        with closing(_connect(self._place())) as connection:
            connection.execute("PRAGMA query_only = ON")
            connection.row_factory = sqlite3.Row
            yield connection

    def read_line(self, file: str, start: int, length: int) -> bytes:
        """The bytes of one trajectory. The name is that of a listed file: an index could say anything."""
        if file not in self._files:
            raise FileNotFoundError(file)
        with open_inside(self._folder, FOLDER, file) as opened:
            if signature_of(opened) != self._files[file]:
                raise FileNotFoundError(f"{file} has been rewritten")
            opened.seek(start)
            return opened.read(length)

    def _bring_up_to_date(self, files: dict[str, Signature], problems: list[str], stop: threading.Event | None) -> None:
        with closing(_connect(self._place())) as connection:
            known = {
                name: Signature(size, mtime_ns)
                for name, size, mtime_ns in connection.execute("SELECT name, size, mtime_ns FROM files")
            }
            for name in known.keys() - files.keys():
                with connection:
                    _forget(connection, name)
            self._files = {name: known[name] for name in known.keys() & files.keys()}
            total = sum(signature.size for signature in files.values()) or 1
            done = sum(files[name].size for name in files if known.get(name) == files[name])
            self._publish(connection, done / total, problems, complete=False)
            for name in sorted((name for name in files if known.get(name) != files[name]), key=_file_order):
                if stop is not None and stop.is_set():
                    return
                self._index_file(connection, name, done, total, problems)
                done += files[name].size
            self._publish(connection, 1.0, problems, complete=True)

    def _index_file(
        self, connection: sqlite3.Connection, name: str, done: int, total: int, problems: list[str]
    ) -> None:
        try:
            with open_inside(self._folder, FOLDER, name) as file:
                signature = signature_of(file)
                with connection:
                    _forget(connection, name)
                    cursor = connection.execute(
                        "INSERT INTO files (name, size, mtime_ns) VALUES (?, ?, ?)",
                        (name, signature.size, signature.mtime_ns),
                    )
                    writer = _Writer(connection, int(cursor.lastrowid or 0), _step_of(name))
                    for number, (start, length, line) in enumerate(lines_of(file), start=1):
                        writer.add(number, start, length, line)
                        if number % _BATCH == 0:
                            self._publish_progress((done + start) / total)
                    writer.finish()
        except FileNotFoundError:  # a resumed run has just deleted it
            return
        except DataError as error:
            problems.append(str(error))
            return
        self._files[name] = signature
        self._publish(connection, (done + signature.size) / total, problems, complete=False)

    def _publish(self, connection: sqlite3.Connection, progress: float, problems: list[str], *, complete: bool) -> None:
        [(count,)] = connection.execute("SELECT count(*) FROM trajectories")
        [(corrupt,)] = connection.execute("SELECT coalesce(sum(corrupt), 0) FROM files")
        self._state = IndexState(
            trajectories=count,
            corrupt_lines=corrupt,
            complete=complete,
            progress=min(1.0, progress),
            problems=tuple(problems),
        )
        self.changes += 1

    def _publish_progress(self, progress: float) -> None:
        state = self._state
        self._state = IndexState(
            trajectories=state.trajectories,
            corrupt_lines=state.corrupt_lines,
            progress=min(1.0, progress),
            problems=state.problems,
        )

    def _place(self) -> Path:
        with self._placing:
            if self._path is None:
                self._path = _usable_path(self._folder)
            return self._path

    def _discard(self) -> None:
        with self._placing:
            if self._path is not None:
                _remove(self._path)
            self._path = None


class _Writer:
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
        if len(self._rows) >= _BATCH:
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
            [(found,)] = self._connection.execute("SELECT id FROM toolsets WHERE names = ?", (text,))
            self._toolsets[names] = found
        return self._toolsets[names]

    def _prompt(self, text: str) -> int:
        if text not in self._prompts:
            digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
            found = self._connection.execute("SELECT id FROM prompts WHERE digest = ?", (digest,)).fetchone()
            if found is None:
                cursor = self._connection.execute(
                    "INSERT INTO prompts (digest, text) VALUES (?, ?)", (digest, text[:PREVIEW_CHARS])
                )
                found = (int(cursor.lastrowid or 0),)
                self._connection.execute(
                    "INSERT INTO prompt_texts (rowid, body) VALUES (?, ?)", (found[0], as_words(text))
                )
            self._prompts[text] = found[0]
        return self._prompts[text]


def _forget(connection: sqlite3.Connection, name: str) -> None:
    """Remove the rows of a file. Its words stay in the search index, where they match no row."""
    rows = "SELECT id FROM trajectories WHERE file = (SELECT id FROM files WHERE name = ?)"
    connection.execute(f"DELETE FROM previews WHERE id IN ({rows})", (name,))
    connection.execute("DELETE FROM trajectories WHERE file = (SELECT id FROM files WHERE name = ?)", (name,))
    connection.execute("DELETE FROM files WHERE name = ?", (name,))


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30.0, check_same_thread=False)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA cache_size = -32768")
    return connection


def _usable_path(folder: Path) -> Path:
    """An index with our schema: the one beside the run, else one in the cache folder."""
    digest = hashlib.blake2b(str(folder.resolve()).encode(), digest_size=12).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agent-r1" / "view"
    problems = []
    for path in (folder / INDEX_NAME, cache / f"{digest}.sqlite"):
        try:
            if path.is_symlink():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            _prepare(path)
            return path
        except (OSError, sqlite3.OperationalError) as error:
            problems.append(f"{path}: {error}")
    raise StorageError(f"no place for the index of {folder} ({'; '.join(problems)}); make one of them writable")


def _prepare(path: Path) -> None:
    """Make sure that the file is an index of this version and can be written; any other file is replaced."""
    with suppress(sqlite3.DatabaseError), closing(_connect(path)) as connection:
        if _has_our_schema(connection):
            with connection:
                connection.execute(f"PRAGMA user_version = {_VERSION}")  # fails where it cannot be written
            return
    _remove(path)
    with closing(_connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        with connection:
            for statement in _SCHEMA:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {_VERSION}")


def _has_our_schema(connection: sqlite3.Connection) -> bool:
    """Whether the file has our tables and nothing else: no triggers, no views."""
    if connection.execute("PRAGMA user_version").fetchone() != (_VERSION,):
        return False
    ours = {statement.split()[3 if "VIRTUAL" in statement else 2]: statement for statement in _SCHEMA}
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    shadows = {f"{table}{part}" for table in ("texts", "prompt_texts") for part in _OF_FTS}
    found = {name: sql for name, sql in rows if name not in shadows and name != "sqlite_sequence"}
    return found == ours


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _step_of(name: str) -> int | None:
    """The training step of a file; None for an evaluation's."""
    stem = name.removesuffix(".jsonl")
    return int(stem) if stem.isascii() and stem.isdigit() and len(stem) < 16 else None


def _file_order(name: str) -> tuple[int, str]:
    """The newest steps first: they are what people look for while the index is being made."""
    return (-(_step_of(name) or 0), name)
