"""The public files that a recipe makes its rows from: taken from a folder, or downloaded once.

    files = locate("gsm8k", {"train": [URL], "test": [URL]}, folder=None)
    rows = list(read_raw(files["train"]))

The first of these that is set is used:

1. `folder`, what `--local_dataset_path` names: `train.jsonl`, `train.jsonl.xz`, `train.jsonl.gz`, `train.parquet` or
   the hub's `train-00000-of-00001.parquet`;
2. the environment variable `AGENT_R1_DATA`: a folder with a folder for each task, with the same files;
3. the addresses. Downloads stay in `$AGENT_R1_CACHE` (else `~/.cache/agent-r1`) and are not fetched again.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from agent_r1.console import progress_counter
from agent_r1.data.tasks import read_rows
from agent_r1.errors import DataError
from agent_r1.paths import cache_dir

DATA_VARIABLE = "AGENT_R1_DATA"

_SUFFIXES = (".jsonl", ".jsonl.xz", ".jsonl.gz", ".parquet", ".json")
_CHUNK = 1 << 16
_TIMEOUT_SECONDS = 60.0


def locate(task: str, addresses_of: Mapping[str, Sequence[str]], folder: Path | None = None) -> dict[str, list[Path]]:
    """The files of each name in `addresses_of`, whose values are where to download them from.

    `locate("gsm8k", {"train": [URL]}, Path("data"))` -> `{"train": [Path("data/train.jsonl.xz")]}`
    """
    local = _local_folder(task, folder)
    if local is not None:
        return {name: find_files(local, name) for name in addresses_of}
    cache = cache_dir("data") / task
    return {
        name: [_fetch_once(task, name, address, cache / f"{name}-{number}") for number, address in enumerate(addresses)]
        for name, addresses in addresses_of.items()
    }


def find_files(folder: Path, name: str) -> list[Path]:
    """The one file `name.jsonl` (or with another ending), or all parts `name-00000-of-00002.parquet`, in a folder."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder} to take {name}.jsonl from")
    whole = [folder / f"{name}{suffix}" for suffix in _SUFFIXES if (folder / f"{name}{suffix}").is_file()]
    if whole:
        return whole[:1]
    parts = sorted(folder.glob(f"{name}-*-of-*.parquet"))
    if not parts:
        names = ", ".join(sorted(file.name for file in folder.iterdir())) or "nothing"
        raise DataError(
            f"{folder} has none of {', '.join(name + suffix for suffix in _SUFFIXES)} or {name}-*-of-*.parquet. "
            f"Found: {names}"
        )
    return parts


def read_raw(files: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """The rows of all files in order. Raises DataError at the first row that is not an object."""
    for file in files:
        for number, row in enumerate(read_rows(file)):
            if not isinstance(row, dict):
                problem = row if isinstance(row, ValueError) else f"expected an object, found {type(row).__name__}"
                raise DataError(f"{file}, row {number}: {problem}")
            yield row


def download(address: str, file: Path) -> None:
    """Download `address` into `file` with a progress bar. On failure there is no file, and an `OSError` says why."""
    file.parent.mkdir(parents=True, exist_ok=True)
    print(f"downloading {address}", file=sys.stderr)
    request = Request(address, headers={"User-Agent": "agent-r1"})
    # A temporary name: two runs that start together must not write into one file.
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}.", delete=False) as partial:
        try:
            with urlopen(request, timeout=_TIMEOUT_SECONDS) as response, progress_counter("kB") as show:
                for num_bytes in _copy(response, partial):
                    show(f"downloading {file.name}", num_bytes // 1000)
        except HTTPError as error:
            error.close()
            raise
        except HTTPException as error:
            raise OSError(f"{type(error).__name__}: {error}") from error
        else:
            partial.flush()
            os.fsync(partial.fileno())
            Path(partial.name).replace(file)
        finally:
            Path(partial.name).unlink(missing_ok=True)


def _copy(response: Any, into: Any) -> Iterator[int]:
    """Copy a response, yielding the bytes so far. One that ends early raises OSError, which `http` does not do."""
    announced = response.headers.get("Content-Length")
    num_bytes = 0
    while chunk := response.read(_CHUNK):
        into.write(chunk)
        num_bytes += len(chunk)
        yield num_bytes
    if announced is not None and num_bytes != int(announced):
        raise OSError(f"the response ended after {num_bytes} of {announced} bytes")


def _local_folder(task: str, folder: Path | None) -> Path | None:
    """The folder the user gave, if any."""
    if folder is not None:
        return folder
    parent = os.environ.get(DATA_VARIABLE)
    if not parent:
        return None
    task_folder = Path(parent).expanduser() / task
    if not task_folder.is_dir():
        folders = sorted(entry.name for entry in task_folder.parent.iterdir()) if task_folder.parent.is_dir() else []
        raise DataError(
            f"{DATA_VARIABLE}={parent} has no folder '{task}'. Found: {', '.join(folders) or 'nothing'}. "
            f"Put the files there, or unset {DATA_VARIABLE} to download them"
        )
    return task_folder


def _fetch_once(task: str, name: str, address: str, folder: Path) -> Path:
    """The downloaded file of an address, fetched when it is not there."""
    file = folder / unquote(Path(urlsplit(address).path).name)
    if file.is_file():
        return file
    try:
        download(address, file)
    except OSError as error:
        raise DataError(
            f"{name} of {task} could not be downloaded from {address}: {error}. Without a network, put the files (in "
            "a form that the recipe's README names) into a folder and give it to the data script with "
            f"--local_dataset_path FOLDER, or put them into FOLDER/{task} and set {DATA_VARIABLE}=FOLDER"
        ) from error
    return file
