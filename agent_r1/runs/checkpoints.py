"""List the checkpoints of a run folder, and find damage in them and in the model of a warm start. Reading a checkpoint
needs torch, this does not."""

from __future__ import annotations

import json
import re
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from agent_r1.errors import CheckpointError
from agent_r1.files import write_atomically
from agent_r1.runs.folder import RunFolder

SHARDS, SHARDS_LIST = "shards", "shards.json"
"""In a checkpoint of several ranks: the folder of their shards, and the sizes and checksums of the files in there."""

STATE, STATE_DIRECTORY = "state.pt", "state.json"
"""In every checkpoint: the state, a zip archive, and the checksum of its directory."""

_NAME = re.compile(r"step_(\d+)$")


def list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """All complete checkpoints, oldest first."""
    if not folder.is_dir():
        return []
    return sorted((int(match[1]), path) for path in folder.iterdir() if (match := _NAME.match(path.name)))


def newest_readable(folder: Path, say: Callable[[str], None] = lambda text: None) -> tuple[int, Path]:
    """The newest undamaged checkpoint. Damaged ones after it are renamed to `step_<n>.corrupt` and reported to `say`;
    when all are damaged, none is renamed and the error names them."""
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
    descriptions = "; ".join(f"{path} ({reason})" for path, reason in damaged)
    raise CheckpointError(
        f"every checkpoint is damaged: {descriptions}. Restore one of them, or start a new run with run.resume=never"
    )


def find_damage(path: Path) -> str | None:
    """What is wrong with a checkpoint's files, in a few words; None when they are undamaged."""
    return _read_errors_as_damage(lambda: _damaged_part(path))


def seal_model(folder: RunFolder) -> None:
    """Write the sizes and checksums of the model's files beside its folder."""
    checksums = {file.name: checksum(file) for file in sorted(folder.model.iterdir()) if file.is_file()}
    write_atomically(folder.model_checksums, json.dumps(checksums, indent=2) + "\n")


def find_model_damage(folder: RunFolder) -> str | None:
    """What is wrong with the files of a sealed model, which are read once; None when they are as they were written,
    and for a model that is not sealed."""
    if not folder.model_checksums.exists():
        return None
    return _read_errors_as_damage(lambda: _damaged_file(folder.model, folder.model_checksums))


def checksum(file: Path) -> list[int]:
    """The size of a file and the CRC-32 of its content."""
    size = crc = 0
    with file.open("rb") as stream:
        while part := stream.read(2**24):
            size, crc = size + len(part), zlib.crc32(part, crc)
    return [size, crc]


def _read_errors_as_damage(find: Callable[[], str | None]) -> str | None:
    """What was found; that files or their checksums cannot be read is damage too."""
    try:
        return find()
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError) as error:
        return str(error) or type(error).__name__
    except (TypeError, LookupError, AttributeError) as error:  # JSON of another form
        return f"its checksums cannot be read ({type(error).__name__})"


def _damaged_part(path: Path) -> str | None:
    if (path / STATE_DIRECTORY).exists():
        directory = json.loads((path / STATE_DIRECTORY).read_text(encoding="utf-8"))
        if directory != _directory(path / STATE, directory["start"]):
            return f"the checksum of the directory of {STATE} is wrong"
    with zipfile.ZipFile(path / STATE) as file:
        bad = file.testzip()
    if bad is not None:
        return f"the checksum of {bad} is wrong"
    return _damaged_file(path / SHARDS, path / SHARDS_LIST) if (path / SHARDS_LIST).exists() else None


def seal_state(path: Path) -> None:
    """Write the checksum of the directory of `state.pt` beside it. The directory holds the checksums of the parts and
    none of its own: with one wrong bit in it, torch leaves a part out and its tensor is whatever was in memory."""
    with zipfile.ZipFile(path / STATE) as file:
        start = file.start_dir
    write_atomically(path / STATE_DIRECTORY, json.dumps(_directory(path / STATE, start)) + "\n")


def _directory(file: Path, start: int) -> dict[str, int]:
    """Where the directory of an archive starts, which is at its end, and the checksum of the rest of the file."""
    with file.open("rb") as stream:
        stream.seek(start)
        return {"start": start, "checksum": zlib.crc32(stream.read())}


def _damaged_file(folder: Path, checksums_file: Path) -> str | None:
    """The first file of a folder that is not as it was when its size and checksum were listed."""
    for name, (size, crc) in json.loads(checksums_file.read_text(encoding="utf-8")).items():
        file = folder / name
        if not file.is_file():
            return f"{folder.name}/{name} is missing"
        if (found := file.stat().st_size) != size:
            return f"{folder.name}/{name} has {found:,} bytes, and {size:,} were written"
        if checksum(file) != [size, crc]:
            return f"the checksum of {folder.name}/{name} is wrong"
    return None


def _put_aside(path: Path) -> Path:
    aside, number = path.with_name(f"{path.name}.corrupt"), 1
    while aside.exists():
        aside, number = path.with_name(f"{path.name}.corrupt{number}"), number + 1
    path.rename(aside)
    return aside
