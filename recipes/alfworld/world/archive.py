"""`games.zip`: the PDDL problems of all trials in one file, and the scenes made of them.

A scene is built once per process and shared by all games in it.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from agent_r1.errors import DataError
from agent_r1.files import write_atomically

from .scene import Scene, read_scene

MAX_SCENES = 1024
"""Scenes kept in memory, about 150 kB each."""


def write_games(path: Path, problems: Iterable[tuple[str, str]]) -> None:
    """Write the problems, by the name of their trial. Equal problems give equal files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in problems:
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED, 9)
    write_atomically(path, buffer.getvalue())


def read_problem(path: str, trial: str) -> str:
    """The PDDL problem of a trial."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(trial).decode()
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(
            f"the games {path} cannot be read: {error}. They are made by "
            "recipes/alfworld/data_preprocess/process_alfworld.py; env.games names them"
        ) from error
    except KeyError:
        raise DataError(f"{path} has no trial '{trial}'; make the rows and the games in one run") from None


@lru_cache(maxsize=MAX_SCENES)
def load_scene(path: str, trial: str) -> Scene:
    """The scene of a trial."""
    return read_scene(read_problem(path, trial))
