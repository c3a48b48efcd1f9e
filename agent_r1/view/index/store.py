"""The index of a run's trajectories: an SQLite file beside the run, one row per trajectory.

It says in which file, at which offset and how long each trajectory is, and has what lists, filters and searches need.
`update` reads files that are new or rewritten; an index that cannot be used is made again. A run folder that cannot be
written has its index in the user's cache folder.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent_r1.errors import DataError, StorageError
from agent_r1.view.index.database import INDEX_NAME, connect, remove_index, transaction, usable_path
from agent_r1.view.index.scan import lines_of
from agent_r1.view.index.writer import BATCH, FileWriter, forget_file
from agent_r1.view.inside import Signature, list_inside, open_inside, signature_of

FOLDER = "trajectories"


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
        self._listed_at = -1
        self.changes = 0
        """Increases with every change."""

    @property
    def state(self) -> IndexState:
        """How far it is."""
        return self._state

    @property
    def is_current(self) -> bool:
        """Whether nothing was added to the folder, or replaced in it, since it was last listed."""
        return self._state.complete and self._changed_at() == self._listed_at

    def _changed_at(self) -> int:
        try:
            return (self._folder / FOLDER).lstat().st_mtime_ns
        except OSError:
            return 0

    def update(self, stop: threading.Event | None = None) -> bool:
        """Bring the index up to date with the files; whether anything changed. Ends early when `stop` is set."""
        with self._updating:
            changed_at = self._changed_at()
            files, problems = list_inside(self._folder, FOLDER, ".jsonl")
            self._listed_at = changed_at
            if self._state.complete and files == self._files and self._state.problems == tuple(problems):
                return False
            try:
                self._bring_up_to_date(files, problems, stop)
            except sqlite3.OperationalError as error:
                problem = f"the index of {self._folder} cannot be written: {error}"
                raise StorageError(f"{problem}; free some space, or delete {INDEX_NAME} there") from error
            except sqlite3.DatabaseError:  # not a database any more
                self._discard()
                self._bring_up_to_date(files, problems, stop)
            return True

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection for queries. `StorageError` when the index was damaged or removed; the next update makes it
        again."""
        try:
            with closing(connect(self._place())) as connection:
                connection.execute("PRAGMA temp_store = MEMORY")
                connection.row_factory = sqlite3.Row
                yield connection
        except sqlite3.Error as error:
            with self._placing:
                self._path = None
            self._state = IndexState()
            raise StorageError(f"the index of {self._folder} is being made again ({error}); try again") from error

    def read_line(self, file: str, start: int, length: int) -> bytes:
        """The bytes of one trajectory. The name is that of a listed file: an index could say anything."""
        if file not in self._files:
            raise FileNotFoundError(file)
        with open_inside(self._folder, FOLDER, file) as stream:
            if signature_of(stream) != self._files[file]:
                raise FileNotFoundError(f"{file} has been rewritten")
            stream.seek(start)
            return stream.read(length)

    def _bring_up_to_date(self, files: dict[str, Signature], problems: list[str], stop: threading.Event | None) -> None:
        with closing(connect(self._place())) as connection:
            entries = {
                name: Signature(size, mtime_ns)
                for name, size, mtime_ns in connection.execute("SELECT name, size, mtime_ns FROM files")
            }
            for name in entries.keys() - files.keys():
                with transaction(connection):
                    forget_file(connection, name)
            self._files = {name: entries[name] for name in entries.keys() & files.keys()}
            total = sum(signature.size for signature in files.values()) or 1
            done = sum(files[name].size for name in files if entries.get(name) == files[name])
            self._publish(connection, done / total, problems, complete=False)
            for name in sorted((name for name in files if entries.get(name) != files[name]), key=_file_order):
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
                with transaction(connection):
                    forget_file(connection, name)
                    cursor = connection.execute(
                        "INSERT INTO files (name, size, mtime_ns) VALUES (?, ?, ?)",
                        (name, signature.size, signature.mtime_ns),
                    )
                    writer = FileWriter(connection, int(cursor.lastrowid or 0), _step_of(name))
                    for number, (start, length, line) in enumerate(lines_of(file), start=1):
                        writer.add(number, start, length, line)
                        if number % BATCH == 0:
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
                self._path = usable_path(self._folder)
            return self._path

    def _discard(self) -> None:
        with self._placing:
            if self._path is not None:
                remove_index(self._path)
            self._path = None


def _step_of(name: str) -> int | None:
    """The training step of a file; None for an evaluation's."""
    stem = name.removesuffix(".jsonl")
    return int(stem) if stem.isascii() and stem.isdigit() and len(stem) < 16 else None


def _file_order(name: str) -> tuple[int, str]:
    """The newest steps first: they are what people look for while the index is being made."""
    return (-(_step_of(name) or 0), name)
