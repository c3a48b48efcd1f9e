"""The SQLite file of an index: its tables, where it lies, and whether it can be used."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from agent_r1.errors import StorageError
from agent_r1.files import locked_folder

INDEX_NAME = "view_index.sqlite"
_VERSION = 1

_SCHEMA = (
    "CREATE TABLE files (id INTEGER PRIMARY KEY, name TEXT UNIQUE, size INTEGER, mtime_ns INTEGER, corrupt INTEGER)",
    "CREATE TABLE trajectories (id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER, line INTEGER, start INTEGER, "
    "length INTEGER, step INTEGER, kind INTEGER, task_id TEXT, group_id INTEGER, member INTEGER, reward REAL, "
    "process_reward REAL, success REAL, stop_reason TEXT, failed INTEGER, retries INTEGER, num_steps INTEGER, "
    "tool_calls INTEGER, toolset INTEGER, tokens INTEGER, data_source TEXT, repairs INTEGER, parse_errors INTEGER, "
    "prompt INTEGER)",
    "CREATE INDEX by_line ON trajectories (file, line)",
    "CREATE INDEX by_task ON trajectories (task_id)",
    "CREATE INDEX by_step ON trajectories (step, kind, file, line)",
    "CREATE INDEX by_tools ON trajectories (toolset, stop_reason)",
    "CREATE TABLE previews (id INTEGER PRIMARY KEY, text TEXT)",
    "CREATE TABLE toolsets (id INTEGER PRIMARY KEY, names TEXT UNIQUE)",
    "CREATE TABLE prompts (id INTEGER PRIMARY KEY, digest BLOB UNIQUE, text TEXT)",
    "CREATE VIRTUAL TABLE texts USING fts5(body, content='')",
    "CREATE VIRTUAL TABLE prompt_texts USING fts5(body, content='')",
)
_OF_FTS = ("_data", "_idx", "_content", "_docsize", "_config")


def connect(path: Path) -> sqlite3.Connection:
    """A connection for one thread."""
    connection = sqlite3.connect(path, timeout=30.0, check_same_thread=False, isolation_level=None)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA cache_size = -32768")
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Within the block no other connection writes; all of it is written, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def usable_path(folder: Path) -> Path:
    """An index with our schema: the one beside the run, else one in the cache folder."""
    if not folder.is_dir():  # deleted while the page is open: a folder with an index alone would be in the way of a run
        raise StorageError(f"the run {folder} is gone")
    digest = hashlib.blake2b(str(folder.resolve()).encode(), digest_size=12).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agent-r1" / "view"
    problems = []
    for path in (folder / INDEX_NAME, cache / f"{digest}.sqlite"):
        try:
            if path.is_symlink():
                continue
            if path.parent == cache:
                cache.mkdir(parents=True, exist_ok=True)
            with locked_folder(path.parent):  # another viewer may be about to do the same
                _prepare(path)
            return path
        except (OSError, sqlite3.OperationalError) as error:
            problems.append(f"{path}: {error}")
    raise StorageError(f"no place for the index of {folder} ({'; '.join(problems)}); make one of them writable")


def _prepare(path: Path) -> None:
    """Make sure that the file is an index of this version and can be written; any other file is replaced."""
    with suppress(sqlite3.DatabaseError), closing(connect(path)) as connection:
        if _has_our_schema(connection):
            with transaction(connection):
                connection.execute(f"PRAGMA user_version = {_VERSION}")  # fails where it cannot be written
            return
    remove_index(path)
    with closing(connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        with transaction(connection):
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
    objects = {name: sql for name, sql in rows if name not in shadows and name != "sqlite_sequence"}
    return objects == ours


def remove_index(path: Path) -> None:
    """Delete an index with its journals."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
