"""Hashes of a run's data files, model and recipe's code at its start, so that a resumed run notices changes.

Small files are hashed whole, large ones by their length, both ends and evenly spaced blocks: weights that were trained
further differ everywhere, and reading a model of 100 GB at every start would take minutes. Modification times are
ignored: a copy of a file is the same file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from agent_r1.config import Config

FILE = "fingerprints.json"
_CODE = "code "
"""Begins the names of the files of a recipe's code."""
_WHOLE_BYTES = 64 * 2**20
_BLOCK_BYTES = 2**20
_NUM_BLOCKS = 32
_MODEL_SUFFIXES = (".json", ".safetensors", ".bin", ".pt", ".model", ".txt", ".jinja", ".py", ".gguf")

Fingerprints = dict[str, str]
"""By key and file: `data.train runs/tasks.jsonl`, `model.path runs/warm/hf/config.json`."""


def run_fingerprints(config: Config) -> Fingerprints:
    """The fingerprints of a run's data files, of the model it starts from and of its recipe's code; missing files have
    none."""
    return {
        **_of_files("data.train", map(Path, config.data.train)),
        **_of_files("data.eval", map(Path, config.data.eval)),
        **model_fingerprints(config.model.path),
        **_of_code(config.recipe),
    }


def without_code(fingerprints: Mapping[str, str]) -> Fingerprints:
    """Those of data and model: other data make another run, other code need not."""
    return {name: value for name, value in fingerprints.items() if not name.startswith(_CODE)}


def code_differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """One line per file of the recipe's code that was changed, added or removed. Empty where either has none: for a run
    of an earlier version, and for one without a recipe."""
    codes = [{name: value for name, value in each.items() if name.startswith(_CODE)} for each in (old, new)]
    return fingerprint_differences(*codes) if all(codes) else []


def model_fingerprints(path: str) -> Fingerprints:
    """The fingerprints of a model folder's files; for a hub model, the commit in the local cache."""
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
    """One line per file that was changed, added or removed. Empty for a run without fingerprints."""
    if not old:
        return []
    return [
        f"{name}: {_length(old.get(name))} -> {_length(new.get(name))}, other content"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def read_fingerprints(folder: Path) -> Fingerprints:
    """The fingerprints in a run's folder; empty for a run without any."""
    try:
        saved = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in saved.items()} if isinstance(saved, dict) else {}


def _length(fingerprint: str | None) -> str:
    return "no file" if fingerprint is None else fingerprint.partition(",")[0]


def _of_files(key: str, files: Iterable[Path]) -> Fingerprints:
    return {f"{key} {file}": fingerprint(file) for file in files if file.is_file()}


def _of_code(recipe: str | None) -> Fingerprints:
    """The fingerprints of the Python files in a recipe's folder, by their names: the folder may have moved since."""
    files = [] if recipe is None else sorted(Path(recipe).glob("*.py"))
    return {f"{_CODE}{file.name}": fingerprint(file) for file in files if file.is_file()}


def _cached_commit(name: str) -> str | None:
    """The commit of a hub model in the local cache, the one that would be loaded."""
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        return None
    try:
        file = try_to_load_from_cache(name, "config.json")
    except HFValidationError:  # not a name of the hub
        return None
    return f"commit {Path(file).parent.name}" if isinstance(file, str) else None
