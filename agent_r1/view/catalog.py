"""The runs that are shown: found in folders, each under an id that requests look up in a table."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from agent_r1.errors import DataError
from agent_r1.runs import RUN_MARKS
from agent_r1.view.run import ViewedRun

_DEPTH = 3
"""How deep below a folder runs are looked for: runs/sweep/seed_1/run."""
_MAX_FOLDERS = 5_000
_SCAN_SECONDS = 2.0


class Catalog:
    """The runs of some folders; new ones are found while it is used."""

    def __init__(self, folders: Sequence[Path]) -> None:
        missing = [str(folder) for folder in folders if not folder.is_dir()]
        if missing:
            raise DataError(f"not a folder: {', '.join(missing)}; give run folders, or folders with runs in them")
        self._folders = [folder.resolve() for folder in folders]
        self._runs: dict[str, ViewedRun] = {}
        self._lock = threading.Lock()
        self._scanned = -_SCAN_SECONDS
        self.problems: list[str] = []
        """Folders that were left out, and why."""

    def runs(self) -> list[ViewedRun]:
        """All runs, by name; folders are searched again after a while."""
        with self._lock:
            if time.monotonic() - self._scanned >= _SCAN_SECONDS:
                self._scan()
                self._scanned = time.monotonic()
            return sorted(self._runs.values(), key=lambda run: run.id)

    def get(self, run_id: str) -> ViewedRun | None:
        """The run with this id."""
        run = self._runs.get(run_id)
        if run is None:
            self.runs()
        return run or self._runs.get(run_id)

    def _scan(self) -> None:
        self.problems = []
        folders: list[Path] = []
        for folder in self._folders:
            folders += [path for path in self._runs_below(folder, folder, 0) if path not in folders]
        run_of = {run.folder: run for run in self._runs.values()}
        runs: dict[str, ViewedRun] = {}
        for folder in sorted(folders):
            run = run_of.get(folder)
            run_id = _slug(folder)
            if run_id in runs or (run is None and run_id in self._runs and self._runs[run_id].folder in folders):
                run_id = f"{run_id}~{hashlib.blake2b(str(folder).encode(errors='replace'), digest_size=4).hexdigest()}"
            if run is None:
                run = ViewedRun(run_id, folder)
            runs[run.id] = run
        self._runs = runs

    def _runs_below(self, folder: Path, root: Path, depth: int) -> Iterator[Path]:
        if _is_run(folder):
            yield folder
            return
        if depth >= _DEPTH:
            return
        try:
            with os.scandir(folder) as entries:
                names = sorted(entry.name for entry in entries if not entry.name.startswith("."))[:_MAX_FOLDERS]
        except OSError as error:
            self.problems.append(f"{folder} cannot be read: {error.strerror or error}")
            return
        for name in names:
            path = folder / name
            if path.is_symlink():
                if path.is_dir() and not path.resolve().is_relative_to(root):
                    self.problems.append(f"{path} leads out of {root}; to see it, name it: agent-r1 view {path}")
            elif path.is_dir():
                yield from self._runs_below(path, root, depth + 1)


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in RUN_MARKS)


def _slug(folder: Path) -> str:
    """The name of a folder, as part of an address.

    >>> _slug(Path("runs/grpo seed=1"))
    'grpo_seed_1'
    """
    return re.sub(r"[^A-Za-z0-9._-]", "_", folder.name)[:100].strip(".") or "run"


def check_folders(runs: Sequence[Path], folder: Path) -> list[Path]:
    """The folders to show; a `DataError` says what to do where there is no run."""
    folders = list(runs) or [folder]
    missing = [path for path in folders if not path.is_dir()]
    if missing:
        if runs:
            raise DataError(f"not a folder: {', '.join(map(str, missing))}; name run folders, such as runs/quickstart")
        raise DataError(f"there is no folder {folder}. {_ADVICE}")
    if not Catalog(folders).runs():
        raise DataError(f"no run in {', '.join(map(str, folders))}. {_ADVICE}")
    return folders


_ADVICE = (
    "Train something first (agent-r1 train quickstart writes runs/quickstart), or name where the runs are: "
    "agent-r1 view RUN... or agent-r1 view --folder FOLDER"
)
