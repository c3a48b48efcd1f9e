"""Checkpoints of several ranks: each writes its own shards, with `torch.distributed.checkpoint`.

step_<n>/state.pt       everything but the shards, which it names, as the checkpoint of one process has it; state.json
         shards/        the shards of all ranks
         shards.json    sizes and checksums of the files in there

The state is that of one process with sharded tensors in the place of whole ones, so any number of ranks reads what any
other number has written.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agent_r1.errors import CheckpointError
from agent_r1.files import atomic_write, flush, replace_folder
from agent_r1.learner.sharded import Ranks
from agent_r1.models import stored_bytes
from agent_r1.runs import SHARDS, SHARDS_LIST, checksum, seal_state

MakeShard = Callable[[torch.Size, torch.dtype], Tensor]
"""An empty sharded tensor of a whole tensor's shape and type."""

_MARK = "shard:"


def write_shards(partial: Path, place: Path, state: Mapping[str, Any], ranks: Ranks) -> None:
    """Write a state into the folder `partial`, then move it to `place`; all ranks succeed or fail together."""
    import torch.distributed.checkpoint as checkpoints

    dcp: Any = checkpoints
    rest, shards = split_shards(state)

    def write() -> None:
        with atomic_write(place, partial=partial, num_bytes=stored_bytes(rest)):
            partial.mkdir(parents=True)

    def write_own() -> dict[str, list[int]]:
        with atomic_write(place):
            writer = dcp.FileSystemWriter(partial / SHARDS, sync_files=True)
            dcp.save(shards, storage_writer=writer, process_group=ranks.objects)
            return {file.name: checksum(file) for file in (partial / SHARDS).glob(f"__{ranks.rank}_*")}

    def finish() -> None:
        with atomic_write(place, partial=partial):
            checksums = {name: entry for files in checksums_by_rank for name, entry in files.items()}
            checksums[".metadata"] = checksum(partial / SHARDS / ".metadata")
            (partial / SHARDS_LIST).write_text(json.dumps(checksums, indent=2) + "\n")
            torch.save(rest, partial / "state.pt")
            seal_state(partial)
            for file in (partial / SHARDS_LIST, partial / "state.pt", partial / SHARDS, partial):
                flush(file)
            replace_folder(partial, place)

    ranks.by_first(write)
    try:
        checksums_by_rank = ranks.gather_now(write_own)
        ranks.by_first(finish)
    except BaseException:
        if ranks.is_first:
            shutil.rmtree(partial, ignore_errors=True)
        raise


def read_shards(path: Path, rest: Any, make_shard: MakeShard | None) -> Any:
    """A state with its shards: whole tensors, or with `make_shard` this rank's parts of them."""
    import torch.distributed.checkpoint as checkpoints
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    dcp: Any = checkpoints
    reader = dcp.FileSystemReader(path / SHARDS)
    entries = reader.read_metadata().state_dict_metadata
    tensors: dict[str, Any] = {}
    for key, entry in entries.items():
        if not isinstance(entry, TensorStorageMetadata):
            raise CheckpointError(f"{path / SHARDS} holds '{key}', which is no tensor")
        shape, dtype = entry.size, entry.properties.dtype
        tensors[key] = torch.empty(shape, dtype=dtype) if make_shard is None else make_shard(shape, dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # each rank reads for itself
        dcp.load(tensors, storage_reader=reader, no_dist=True)
    return _fill_marks(rest, tensors)


def split_shards(state: Any) -> tuple[Any, dict[str, Tensor]]:
    """A nested state with a mark in the place of each sharded tensor, and these tensors by their place."""
    from torch.distributed.tensor import DTensor

    shards: dict[str, Tensor] = {}

    def marked(entry: Any, place: str) -> Any:
        if isinstance(entry, DTensor):
            shards[place] = entry.detach()
            return f"{_MARK}{place}"
        if isinstance(entry, Mapping):
            return {key: marked(value, f"{place}/{key}") for key, value in entry.items()}
        if isinstance(entry, list | tuple):
            return [marked(value, f"{place}/{index}") for index, value in enumerate(entry)]
        return entry

    return marked(state, ""), shards


def _fill_marks(entry: Any, shards: Mapping[str, Any]) -> Any:
    if isinstance(entry, str) and entry.startswith(_MARK):
        return shards[entry.removeprefix(_MARK)]
    if isinstance(entry, Mapping):
        return {key: _fill_marks(value, shards) for key, value in entry.items()}
    if isinstance(entry, list):
        return [_fill_marks(value, shards) for value in entry]
    return entry
