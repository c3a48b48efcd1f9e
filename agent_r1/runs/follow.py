"""Follow a run while another process writes it: new lines of its metrics, and new files of trajectories.

    async for update in follow_metrics(Path("runs/quickstart")):
        curves = [*update.lines] if update.is_rewritten else [*curves, *update.lines]

Files are polled, which works on every file system. The run may not have started yet; a last line that is only half
written comes when it is complete; a run that is resumed or started again rewrites its files.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from agent_r1.errors import DataError
from agent_r1.runs.folder import RunFolder
from agent_r1.runs.tracking import parse_metrics_line

POLL_SECONDS = 1.0
_TAIL_BYTES = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricsUpdate:
    """New lines of a metrics file."""

    lines: tuple[dict[str, Any], ...]
    """In order; each has its `step`."""
    is_rewritten: bool = False
    """The run was resumed or started again: `lines` are all lines of the file, and earlier ones no longer hold."""


class MetricsFollower:
    """Reads a metrics file; each call of `read_new` returns what was added since the last one."""

    def __init__(self, folder: Path) -> None:
        self._path = RunFolder(folder).metrics
        self._file_id: tuple[int, int] | None = None
        self._offset = 0
        self._num_lines = 0
        self._tail = b""
        """The last bytes that were read. Other bytes in their place mean another file."""

    def read_new(self) -> MetricsUpdate | None:
        """The lines that have been completed since the last call; None when there is no news. `DataError` for a
        complete line that is not a line of metrics."""
        try:
            with self._path.open("rb") as file:
                is_rewritten = self._is_rewritten(file)
                if is_rewritten:
                    self._offset, self._num_lines, self._tail = 0, 0, b""
                file.seek(self._offset)
                unread = file.read()
        except (FileNotFoundError, NotADirectoryError):  # not started yet, or just renamed
            return None
        complete = unread[: unread.rfind(b"\n") + 1]
        lines = self._parse(complete)
        self._offset += len(complete)
        self._num_lines += complete.count(b"\n")
        self._tail = (self._tail + complete)[-_TAIL_BYTES:]
        return MetricsUpdate(lines=lines, is_rewritten=is_rewritten) if lines or is_rewritten else None

    def _is_rewritten(self, file: BinaryIO) -> bool:
        """Whether what has been read is no longer what the file begins with."""
        status = os.fstat(file.fileno())
        previous, self._file_id = self._file_id, (status.st_dev, status.st_ino)
        file.seek(self._offset - len(self._tail))
        return self._offset > 0 and (previous != self._file_id or file.read(len(self._tail)) != self._tail)

    def _parse(self, complete: bytes) -> tuple[dict[str, Any], ...]:
        lines = []
        for number, text in enumerate(complete.splitlines(), start=self._num_lines + 1):
            line = parse_metrics_line(text)
            if line is not None:
                lines.append(line)
            elif text.strip():
                raise DataError(f"line {number} of {self._path} is not a line of metrics (JSON in UTF-8 with a step)")
        return tuple(lines)


class TrajectoriesFollower:
    """Lists trajectory files; each call of `read_new` returns those that are new or rewritten."""

    def __init__(self, folder: Path) -> None:
        self._folder = RunFolder(folder)
        self._known: dict[Path, tuple[int, int, int]] = {}

    def read_new(self) -> list[Path]:
        """Files that have appeared or changed since the last call, evaluations first, then steps in order. Each is
        complete: trajectories are written to another name first."""
        present: dict[Path, tuple[int, int, int]] = {}
        for file in self._folder.trajectory_files():
            try:
                status = file.stat()
            except FileNotFoundError:  # a resumed run has just deleted it
                continue
            present[file] = (status.st_ino, status.st_mtime_ns, status.st_size)
        new = [file for file, version in present.items() if self._known.get(file) != version]
        self._known = present
        return new


async def follow_metrics(folder: Path, *, poll_seconds: float = POLL_SECONDS) -> AsyncIterator[MetricsUpdate]:
    """The metrics of a run, from its first line on and without end; the folder need not exist yet."""
    follower = MetricsFollower(folder)
    while True:
        update = await asyncio.to_thread(follower.read_new)
        if update is not None:
            yield update
        await asyncio.sleep(poll_seconds)


async def follow_trajectories(folder: Path, *, poll_seconds: float = POLL_SECONDS) -> AsyncIterator[Path]:
    """The trajectory files of a run as they are written, without end; for `read_trajectories`. A file that is
    rewritten comes again."""
    follower = TrajectoriesFollower(folder)
    while True:
        for file in await asyncio.to_thread(follower.read_new):
            yield file
        await asyncio.sleep(poll_seconds)
