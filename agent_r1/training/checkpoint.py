"""Checkpoints that are there or not there, never half there.

A checkpoint is written into a folder beside its place, flushed to disk, and renamed. Whatever is called `step_<n>` was
complete when it was written. What a disk or a copy has damaged since is found before it is used: the file holds a
checksum of each of its parts.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agent_r1.errors import CheckpointError
from agent_r1.files import atomic_write, replace_folder

_NAME = re.compile(r"step_(\d+)$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A saved state."""

    step: int
    """Training steps done."""
    path: Path
    """Its folder."""
    state: Mapping[str, Any]
    """What was saved."""


def save_checkpoint(folder: Path, *, step: int, state: Mapping[str, Any], keep: int) -> Path:
    """Save a state as `folder/step_<n>` and remove all but the `keep` newest. One that cannot be written is a
    `StorageError` and leaves those that are there."""
    place, beside = folder / f"step_{step}", folder / f".step_{step}.partial"
    with atomic_write(place, partial=beside, num_bytes=stored_bytes(state)):
        folder.mkdir(parents=True, exist_ok=True)
        for left_behind in folder.glob(".step_*.partial"):  # by a run that was killed: it takes the room of a whole one
            shutil.rmtree(left_behind, ignore_errors=True)
        beside.mkdir()
        with (beside / "state.pt").open("wb") as file:
            torch.save(dict(state), file)
            file.flush()
            os.fsync(file.fileno())
        replace_folder(beside, place)
    for _, old in list_checkpoints(folder)[:-keep] if keep > 0 else []:
        shutil.rmtree(old, ignore_errors=True)
    return place


def stored_bytes(state: Any) -> int:
    """Bytes of the tensors in a nested state; what two of them share is stored once."""
    sizes: dict[int, int] = {}
    unseen = [state]
    while unseen:
        entry = unseen.pop()
        if isinstance(entry, torch.Tensor):
            storage = entry.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
        elif isinstance(entry, Mapping):
            unseen.extend(entry.values())
        elif isinstance(entry, list | tuple):
            unseen.extend(entry)
    return sum(sizes.values())


def list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """All complete checkpoints, oldest first."""
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.match(path.name))]
    return sorted(found)


def newest_readable(folder: Path, say: Callable[[str], None] = lambda text: None) -> tuple[int, Path]:
    """The newest checkpoint that is undamaged. Damaged ones after it are renamed to `step_<n>.corrupt`, and `say` hears
    of them; when none is left they stay as they are and the error names each."""
    damaged: list[tuple[Path, str]] = []
    for step, path in reversed(list_checkpoints(folder)):
        damage = find_damage(path)
        if damage is not None:
            damaged.append((path, damage))
            continue
        for bad, reason in damaged:
            aside = _put_aside(bad).name
            say(f"{bad} is damaged ({reason}). It is renamed to {aside}; the run resumes from step {step}")
        return step, path
    if not damaged:
        raise CheckpointError(f"there is no checkpoint in {folder}")
    named = "; ".join(f"{path} ({reason})" for path, reason in damaged)
    raise CheckpointError(
        f"every checkpoint is damaged: {named}. Restore one of them, or begin a new run with run.resume=never"
    )


def find_damage(path: Path) -> str | None:
    """What is wrong with a checkpoint's file, in a few words; None when all of it is as it was written."""
    try:
        with zipfile.ZipFile(path / "state.pt") as file:
            bad = file.testzip()
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError) as error:
        return str(error) or type(error).__name__
    return None if bad is None else f"the checksum of {bad} is wrong"


def _put_aside(path: Path) -> Path:
    aside, number = path.with_name(f"{path.name}.corrupt"), 1
    while aside.exists():
        aside, number = path.with_name(f"{path.name}.corrupt{number}"), number + 1
    path.rename(aside)
    return aside


def load_checkpoint(step: int, path: Path, device: torch.device) -> Checkpoint:
    """Read a checkpoint."""
    try:
        state = torch.load(path / "state.pt", map_location=device, weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"the checkpoint {path} cannot be read ({type(error).__name__})") from error
    return Checkpoint(step=step, path=path, state=state)
