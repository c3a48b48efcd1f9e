"""What all indexes share: the protocol, and the folder with its manifest."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agent_r1.errors import ConfigError, DataError, require_installed
from agent_r1.files import atomic_write, flush, locked_folder, replace_folder
from agent_r1.tools.builtin.search.passages import Passage

FORMAT = 1
MANIFEST = "manifest.json"

Progress = Callable[[str, int], None]
"""Called with the stage of a build and the number of passages done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """A passage that was found."""

    passage: Passage
    """The passage."""
    score: float
    """How well it fits the query; higher is better."""


class PassageIndex(Protocol):
    """An index that finds passages."""

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
    """Raise when a folder is not a complete index or its library is not installed, without loading either."""
    if read_manifest(folder)["kind"] == "bm25":
        require_installed("bm25s", "bm25s", "search", "search by words")
    else:
        require_installed("faiss", "faiss-cpu", "dense", "search by meaning")
        require_installed("sentence_transformers", "sentence-transformers", "dense", "search by meaning")


def read_manifest(folder: Path, kind: str | None = None) -> dict[str, Any]:
    """The manifest of an index folder, once the index is known to be complete and of the expected kind and format."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        state = "does not exist" if not folder.exists() else f"has no {MANIFEST}"
        raise ConfigError(f"there is no search index: {folder} {state}. Build it: {build_command(folder)}") from None
    except (OSError, ValueError) as error:
        raise _unusable(folder, f"its {MANIFEST} cannot be read ({error})") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        version = manifest.get("format") if isinstance(manifest, dict) else manifest
        raise _unusable(folder, f"its format is {version!r}, this version reads {FORMAT}")
    if kind is not None and manifest["kind"] != kind:
        raise _unusable(folder, f"it is of kind '{manifest['kind']}', not '{kind}'")
    for name, size in manifest["files"].items():
        file = folder / name
        if not file.is_file() or file.stat().st_size != size:
            observed = f"{file.stat().st_size} bytes" if file.is_file() else "nothing"
            raise _unusable(folder, f"{name} should have {size} bytes, found {observed}")
    return manifest


def _unusable(folder: Path, reason: str) -> ConfigError:
    return ConfigError(f"the search index {folder} cannot be used: {reason}. Build it again: {build_command(folder)}")


@contextmanager
def new_index(folder: Path, manifest: dict[str, Any]) -> Iterator[Path]:
    """A folder to write an index into. It replaces `folder`, with `manifest`, only when the block succeeds.

    Every build has its own partial folder, `.NAME.<token>.partial`: of two builds of one index that run at the same
    time, the later one stays. What a killed build leaves is removed by the next one.
    """
    folder = folder.resolve()
    if folder.exists() and not (folder / MANIFEST).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not a search index; choose another place")
    partial = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
    with atomic_write(folder, partial=partial), ExitStack() as building:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked_folder(folder.parent):
            _remove_abandoned(folder)
            partial.mkdir()
            building.enter_context(locked_folder(partial))
        yield partial
        files = sorted(path for path in partial.iterdir() if path.is_file())
        complete = {"format": FORMAT, **manifest, "files": {path.name: path.stat().st_size for path in files}}
        (partial / MANIFEST).write_text(json.dumps(complete, ensure_ascii=False, indent=1), encoding="utf-8")
        for path in (*files, partial / MANIFEST):
            flush(path)
        replace_folder(partial, folder)


def _remove_abandoned(folder: Path) -> None:
    """Remove the partial folders of builds that were killed: those that no process has locked."""
    for path in list(folder.parent.iterdir()):
        if path.name.startswith(f".{folder.name}.") and path.name.endswith(".partial") and path.is_dir():
            with suppress(FileNotFoundError), locked_folder(path, wait=False) as is_abandoned:
                if is_abandoned:
                    shutil.rmtree(path, ignore_errors=True)


def counted(passages: Iterable[Passage], stage: str, progress: Progress | None) -> Iterator[Passage]:
    """The passages, reporting to `progress` every 500. Raises `DataError` when there are none."""
    number = 0
    for number, passage in enumerate(passages, start=1):
        yield passage
        if progress is not None and number % 500 == 0:
            progress(stage, number)
    if number == 0:
        raise DataError("there are no passages to index")
    if progress is not None:
        progress(stage, number)


def hits(passages: Sequence[Passage], ranked: Iterable[tuple[int, float]]) -> list[Hit]:
    """The passages of these numbers, with their scores."""
    return [Hit(passage=passages[number], score=score) for number, score in ranked]
