"""The trials of ALFWorld, from a folder, a packed file, or downloaded.

* the folders of `alfworld-download`: `json_2.1.1/SPLIT/TASK/TRIAL/` with `game.tw-pddl`, or with
  `initial_state.pddl` and `traj_data.json`;
* the same packed: `*.zip` or `*.tar.xz`.

A trial is a game when its goal needs no slices and no movable receptacles, and ALFWorld found it solvable.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from agent_r1.data import DATA_VARIABLE, locate
from agent_r1.errors import DataError

from ..world.goals import FAMILIES, TEMPLATES, Goal, read_goal
from ..world.pddl import parse_problem

RELEASES = "https://github.com/alfworld/alfworld/releases/download"
DOWNLOADS = {"tw-pddl": [f"{RELEASES}/0.4.0/json_2.1.2_tw-pddl.zip"]}
"""What `alfworld-download` fetches with the games in it."""
SPLITS = ("train", "valid_train", "valid_seen", "valid_unseen")
UNSEEN_FLOOR_PLANS = frozenset({10, 219, 308, 424})
"""The rooms of the unseen games; nothing is trained in them."""

_NEEDED = ("game.tw-pddl", "initial_state.pddl", "traj_data.json")
_TASK = re.compile(r"Your task is to: (.*?)\.\"")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One official game."""

    name: str
    """SPLIT/TASK/TRIAL."""
    problem: str
    """The PDDL problem."""
    goal: Goal
    floor_plan: int
    """The number of the room."""

    @property
    def split(self) -> str:
        """train, valid_train, valid_seen or valid_unseen."""
        return self.name.partition("/")[0]


def read_trials(folder: Path | None, splits: tuple[str, ...]) -> list[Trial]:
    """The games of these splits, sorted by name."""
    files: dict[str, dict[str, bytes]] = {}
    for path in _sources(folder):
        for name, content in _read(path, splits):
            *_, split, task, trial, file = PurePosixPath(name).parts
            files.setdefault(f"{split}/{task}/{trial}", {})[file] = content
    found = [made for name in sorted(files) if (made := make_trial(name, files[name])) is not None]
    missing = [split for split in splits if not any(trial.split == split for trial in found)]
    if missing:
        raise DataError(
            f"no game of {', '.join(missing)} in {folder or 'what was downloaded'}: expected "
            "SPLIT/TASK/TRIAL/game.tw-pddl, or initial_state.pddl with traj_data.json, as alfworld-download has them"
        )
    return found


def make_trial(name: str, files: dict[str, bytes]) -> Trial | None:
    """A trial from its files; None where it is no game."""
    task = name.split("/")[1]
    if "movable" in task or "Sliced" in task:
        return None
    family, floor_plan = task.partition("-")[0], int(task.rpartition("-")[2])
    game = json.loads(files["game.tw-pddl"]) if "game.tw-pddl" in files else {}
    solvable = game.get("solvable", json.loads(files.get("traj_data.json", b"{}")).get("solvable"))
    problem = game.get("pddl_problem") or files.get("initial_state.pddl", b"").decode()
    if family not in FAMILIES or not solvable or not problem:
        return None
    goal = read_goal(family, parse_problem(problem).goal, wording=_wording(name, family, game))
    return Trial(name=name, problem=problem, goal=goal, floor_plan=floor_plan)


def _wording(name: str, family: str, game: dict[str, Any]) -> int:
    """Which template says the goal: the official game's where it is known, else one for each trial."""
    said = _TASK.search(game.get("grammar", ""))
    if said is not None:
        first = TEMPLATES[family][0].split("{")[0]
        return int(not said[1].startswith(first))
    return sum(name.encode()) % 2


def _sources(folder: Path | None) -> list[Path]:
    """The folders and packed files to read."""
    if folder is None and os.environ.get(DATA_VARIABLE):
        folder = Path(os.environ[DATA_VARIABLE]).expanduser() / "alfworld"
    if folder is None:
        return [file for files in locate("alfworld", DOWNLOADS).values() for file in files]
    packed = sorted([*folder.glob("*.zip"), *folder.glob("*.tar.xz")])
    unpacked = [folder] if any(next(folder.rglob(file), None) for file in _NEEDED) else []
    if not packed and not unpacked:
        found = ", ".join(sorted(entry.name for entry in folder.iterdir())) if folder.is_dir() else "no such folder"
        raise DataError(f"{folder} has neither *.zip, *.tar.xz nor folders of trials. Found: {found or 'nothing'}")
    return unpacked or packed


def _read(path: Path, splits: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """The files of trials in a folder or packed file, with their names."""
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if _is_wanted(file.as_posix(), splits):
                yield file.as_posix(), file.read_bytes()
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if _is_wanted(name, splits):
                    yield name, archive.read(name)
    else:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile() and _is_wanted(member.name, splits):
                    content = archive.extractfile(member)
                    assert content is not None
                    yield member.name, content.read()


def _is_wanted(name: str, splits: tuple[str, ...]) -> bool:
    parts = PurePosixPath(name).parts
    return len(parts) >= 4 and parts[-1] in _NEEDED and parts[-4] in splits
