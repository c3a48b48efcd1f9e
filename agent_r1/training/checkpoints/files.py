"""Atomic checkpoints: complete or not there at all.

A checkpoint is written into a temporary folder beside its place, flushed to disk, and renamed, so every `step_<n>` was
complete when it was written. Later damage is detected before a checkpoint is used: the file holds a checksum of each of
its parts, and `state.json` beside it that of its directory.
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
from agent_r1.learner.sharded import Ranks
from agent_r1.models import stored_bytes
from agent_r1.runs import SHARDS_LIST, RunFolder, list_checkpoints, seal_state
from agent_r1.training.checkpoints.shards import MakeShard, read_shards, write_shards

RUN_ID = "run_id"
"""In the state: the random name of the run that wrote it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """The saved state of a run after a step."""

    step: int
    """Training steps done."""
    path: Path
    """Its folder."""
    state: Mapping[str, Any]
    """What was saved."""


def save_checkpoint(
    folder: Path, *, step: int, state: Mapping[str, Any], keep: int, ranks: Ranks | None = None
) -> Path:
    """Save a state as `folder/step_<n>` and remove all but the `keep` newest. One that cannot be written is a
    `StorageError` and leaves those that are there. On several ranks all of them take part."""
    place, partial = folder / f"step_{step}", folder / f".step_{step}.partial"
    is_first = ranks is None or ranks.is_first
    for left_behind in folder.glob(".step_*.partial") if is_first else ():  # by a run that was killed: it takes room
        shutil.rmtree(left_behind, ignore_errors=True)
    if ranks is not None and ranks.is_sharded:
        write_shards(partial, place, state, ranks)
    else:
        _write_whole(partial, place, state)
    for _, old in list_checkpoints(folder)[:-keep] if keep > 0 and is_first else []:
        shutil.rmtree(old, ignore_errors=True)
    return place


def _write_whole(partial: Path, place: Path, state: Mapping[str, Any]) -> None:
    with atomic_write(place, partial=partial, num_bytes=stored_bytes(state)):
        place.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        with (partial / "state.pt").open("wb") as file:
            torch.save(dict(state), file)
            file.flush()
            os.fsync(file.fileno())
        seal_state(partial)
        replace_folder(partial, place)


def load_checkpoint(step: int, path: Path, *, make_shard: MakeShard | None = None) -> Checkpoint:
    """Read a checkpoint, its tensors on the CPU. Of one that several ranks have written, `make_shard` says which parts
    are read; without it they are read whole. One that was copied from another run is refused: its weights, counters and
    order of the data belong to that run's data and logs."""
    try:
        state = torch.load(path / "state.pt", map_location="cpu", weights_only=True, mmap=make_shard is not None)
        if (path / SHARDS_LIST).exists():
            state = read_shards(path, state, make_shard)
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"the checkpoint {path} cannot be read ({type(error).__name__})") from error
    _check_run(path, state)
    return Checkpoint(step=step, path=path, state=state)


def _check_run(path: Path, state: Any) -> None:
    """Refuse the checkpoint of another run than the one in whose folder it is; earlier versions did not name theirs."""
    folder = RunFolder(path.parent.parent)
    own, written_by = folder.read_run_id(), state.get(RUN_ID) if isinstance(state, Mapping) else None
    if own is not None and written_by is not None and own != written_by:
        raise CheckpointError(
            f"{path} was written by another run than {folder.path} (run_id {written_by!s:.40}, not {own:.40}). Delete "
            "it, or move it back to the folder of its run; to start a new run from its weights, `agent-r1 export` that "
            "run with --step and give the model as model.path"
        )
