"""What a run's data files and model contained when it began, so that a resumed run notices when they have changed.

Small files are hashed whole. Of a large one the length, both ends and evenly spaced blocks are hashed: weights that
were trained further differ everywhere, and reading a model of 100 GB at every start would take minutes. Modification
times do not count: a copy of a file is the same file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from agent_r1.config import Config

FILE = "fingerprints.json"
_WHOLE_BYTES = 64 * 2**20
_BLOCK_BYTES = 2**20
_NUM_BLOCKS = 32
_MODEL_SUFFIXES = (".json", ".safetensors", ".bin", ".pt", ".model", ".txt", ".jinja", ".py", ".gguf")

Fingerprints = dict[str, str]
"""By what it is of: `data.train runs/tasks.jsonl`, `model.path runs/warm/hf/config.json`."""


def run_fingerprints(config: Config) -> Fingerprints:
    """Of the rows a run reads and of the model it starts from; what does not exist has none."""
    return {
        **_of_files("data.train", map(Path, config.data.train)),
        **_of_files("data.eval", map(Path, config.data.eval)),
        **model_fingerprints(config.model.path),
    }


def model_fingerprints(path: str) -> Fingerprints:
    """Of a model folder's files; of a model of the hub the commit that is in the cache."""
    folder = Path(path)
    if folder.is_dir():
        return _of_files("model.path", sorted(file for file in folder.iterdir() if file.suffix in _MODEL_SUFFIXES))
    if folder.is_file():
        return _of_files("model.path", [folder])
    commit = _cached_commit(path)
    return {} if commit is None else {f"model.path {path}": commit}


def fingerprint(file: Path) -> str:
    """A file's length and a hash of its content."""
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as content:
        if size <= _WHOLE_BYTES:
            while block := content.read(_BLOCK_BYTES):
                digest.update(block)
        else:
            for index in range(_NUM_BLOCKS):
                content.seek((size - _BLOCK_BYTES) * index // (_NUM_BLOCKS - 1))
                digest.update(content.read(_BLOCK_BYTES))
    return f"{size} bytes, sha256 {digest.hexdigest()[:32]}"


def fingerprint_differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """One line for each file that has changed, appeared or gone. Nothing for a run that wrote no fingerprints."""
    if not old:
        return []
    return [
        f"{name}: {_length(old.get(name))} -> {_length(new.get(name))}, other content"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def read_fingerprints(folder: Path) -> Fingerprints:
    """What a run's folder has; nothing for a run that wrote none."""
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _length(known: str | None) -> str:
    return "no file" if known is None else known.partition(",")[0]


def _of_files(key: str, files: Iterable[Path]) -> Fingerprints:
    return {f"{key} {file}": fingerprint(file) for file in files if file.is_file()}


def _cached_commit(name: str) -> str | None:
    """The commit of a hub model in the local cache, which is what would be loaded."""
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        return None
    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError:  # no name of the hub
        return None
    return f"commit {Path(found).parent.name}" if isinstance(found, str) else None
