"""Read the `.wandb` file of an offline run: records of W&B's own protocol in a log of 32 KiB blocks, as LevelDB's."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK = 32768
_FILE_HEADER = 7
_FULL, _FIRST, _LAST = 1, 2, 4


def raw_records(data: bytes) -> Iterator[bytes]:
    assert data[:4] == b":W&B"
    position, parts = _FILE_HEADER, list[bytes]()
    while position + 7 <= len(data):
        if _BLOCK - position % _BLOCK < 7:  # too short for a record: padding
            position += _BLOCK - position % _BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        if kind == 0:
            return
        part = data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (_FULL, _FIRST):
            parts = []
        parts.append(part)
        if kind in (_FULL, _LAST):
            yield b"".join(parts)


def records(folder: Path) -> Iterator[Any]:
    """The records of all `.wandb` files below a folder."""
    from wandb.proto import wandb_internal_pb2

    make_record: Any = vars(wandb_internal_pb2)["Record"]
    for file in sorted(folder.rglob("*.wandb")):
        for raw in raw_records(file.read_bytes()):
            record = make_record()
            record.ParseFromString(raw)
            yield record


def read_offline_run(folder: Path) -> tuple[Any, dict[str, Any], dict[int, dict[str, Any]]]:
    """The last run record, its configuration, and the metrics by step."""
    run, config, history = None, dict[str, Any](), dict[int, dict[str, Any]]()
    for record in records(folder):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "history":
            line = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            history.setdefault(record.history.step.num, {}).update(line)
    return run, config, history


def read_exit_code(folder: Path) -> int:
    """How the last run ended: 0 for finished."""
    codes = [record.exit.exit_code for record in records(folder) if record.WhichOneof("record_type") == "exit"]
    return int(codes[-1])
