"""What every index is: a folder that is complete or not there, and a `search` that takes many queries at once."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from agent_r1.errors import ConfigError, DataError, require_installed
from agent_r1.tools.builtin.search.passages import Passage

FORMAT = 1
MANIFEST = "manifest.json"

Progress = Callable[[str, int], None]
"""Told what is being done and how many passages it has been done to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """A passage that was found."""

    passage: Passage
    """The passage."""
    score: float
    """How well it fits the query; higher is better."""


class PassageIndex(Protocol):
    """Finds passages."""

    def __len__(self) -> int:
        """How many passages there are."""
        ...

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The `k` best passages of each query, best first, equal scores in the order of the passages."""
        ...


def build_command(folder: Path) -> str:
    """The command that makes an index in `folder`."""
    return f"agent-r1 index PASSAGES.jsonl --out {folder}"


def open_index(folder: Path) -> PassageIndex:
    """The index in a folder, of whatever kind it is."""
    kind = read_manifest(folder)["kind"]
    if kind == "bm25":
        from agent_r1.tools.builtin.search.bm25 import BM25Index

        return BM25Index.load(folder)
    if kind == "dense":
        from agent_r1.tools.builtin.search.dense import DenseIndex

        return DenseIndex.load(folder)
    raise ConfigError(f"{folder} holds an index of kind '{kind}'; known are bm25 and dense")


def check_index(folder: Path) -> None:
    """Refuse a folder that is no whole index, or whose library is not installed, without loading either."""
    if read_manifest(folder)["kind"] == "bm25":
        require_installed("bm25s", "bm25s", "search", "search by words")
    else:
        require_installed("faiss", "faiss-cpu", "dense", "search by meaning")
        require_installed("sentence_transformers", "sentence-transformers", "dense", "search by meaning")


def read_manifest(folder: Path, kind: str | None = None) -> dict[str, Any]:
    """What an index folder says about itself, after checking that it is whole and of the kind and format asked for."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        state = "does not exist" if not folder.exists() else f"has no {MANIFEST}"
        raise ConfigError(f"there is no search index: {folder} {state}. Build it: {build_command(folder)}") from None
    except (OSError, ValueError) as error:
        raise _unfit(folder, f"its {MANIFEST} cannot be read ({error})") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else manifest
        raise _unfit(folder, f"its format is {found!r}, this version reads {FORMAT}")
    if kind is not None and manifest["kind"] != kind:
        raise _unfit(folder, f"it is of kind '{manifest['kind']}', not '{kind}'")
    for name, size in manifest["files"].items():
        file = folder / name
        if not file.is_file() or file.stat().st_size != size:
            found = f"{file.stat().st_size} bytes" if file.is_file() else "nothing"
            raise _unfit(folder, f"{name} should have {size} bytes, found {found}")
    return manifest


def _unfit(folder: Path, reason: str) -> ConfigError:
    return ConfigError(f"the search index {folder} cannot be used: {reason}. Build it again: {build_command(folder)}")


@contextmanager
def new_index(folder: Path, manifest: dict[str, Any]) -> Iterator[Path]:
    """A folder to write an index into. It takes its place, with `manifest`, only when the block ends well.

    A build that is killed leaves `.NAME.partial` beside the place, which the next build removes.
    """
    folder = folder.resolve()
    if folder.exists() and not (folder / MANIFEST).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not a search index; choose another place")
    beside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        yield beside
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    files = sorted(path for path in beside.iterdir() if path.is_file())
    whole = {"format": FORMAT, **manifest, "files": {path.name: path.stat().st_size for path in files}}
    (beside / MANIFEST).write_text(json.dumps(whole, ensure_ascii=False, indent=1), encoding="utf-8")
    for path in (*files, beside / MANIFEST):
        _flush(path)
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    beside.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
    _flush(folder.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def counted(passages: Iterable[Passage], stage: str, progress: Progress | None) -> Iterator[Passage]:
    """The same passages, telling `progress` now and then how far it is. Refuses to be empty."""
    number = 0
    for number, passage in enumerate(passages, start=1):
        yield passage
        if progress is not None and number % 500 == 0:
            progress(stage, number)
    if number == 0:
        raise DataError("there are no passages to index")
    if progress is not None:
        progress(stage, number)


def best(scores: NDArray[Any], k: int) -> NDArray[np.intp]:
    """The places of the `k` highest scores above 0, highest first, equal ones by place.

    `best([0, 2, 1, 2, 0], 2)` -> `[1, 3]`, `best([0, 2, 1, 2, 0], 9)` -> `[1, 3, 2]`
    """
    candidates = np.flatnonzero(scores > 0)
    if len(candidates) > k:
        # Only among the scores above 0: selecting from many equal zeros is several times slower.
        found = scores[candidates]
        candidates = candidates[found >= np.partition(found, -k)[-k]]
    order = np.lexsort((candidates, -scores[candidates]))
    ranked: NDArray[np.intp] = candidates[order[:k]]
    return ranked


def hits(passages: Sequence[Passage], places: Iterable[Any], scores: Mapping[Any, Any] | NDArray[Any]) -> list[Hit]:
    """Places and their scores as records."""
    return [Hit(passage=passages[int(place)], score=float(scores[place])) for place in places]
