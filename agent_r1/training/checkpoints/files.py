"""Atomic checkpoints: complete or not there at all.

A checkpoint is written into a temporary folder beside its place, flushed to disk, and renamed, so every `step_<n>` was
complete when it was written. Later damage is detected before a checkpoint is used: the file holds a checksum of each of
its parts.
"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agent_r1.errors import CheckpointError
from agent_r1.files import atomic_write, replace_folder
from agent_r1.models import stored_bytes
from agent_r1.runs import list_checkpoints


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


def load_checkpoint(step: int, path: Path) -> Checkpoint:
    """Read a checkpoint, its tensors on the CPU."""
    try:
        state = torch.load(path / "state.pt", map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"the checkpoint {path} cannot be read ({type(error).__name__})") from error
    return Checkpoint(step=step, path=path, state=state)
