"""Bounded memory for images: processed inputs in a least-recently-used cache, and the pictures they are made of, as PNG
in memory and then in a temporary folder."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from agent_r1.errors import ImageError
from agent_r1.files import atomic_write
from agent_r1.images.picture import Picture

if TYPE_CHECKING:
    import numpy.typing as npt

Inputs = Mapping[str, "npt.NDArray[Any]"]

MAX_INPUT_BYTES = 512 * 2**20
MAX_SOURCE_BYTES = 256 * 2**20
MAX_SPILLED_BYTES = 32 * 2**30


class PictureSources:
    """Pictures by content hash: the latest in memory, earlier ones in a temporary folder that ends with the process.
    When that is full too, the picture that was not used for the longest time is forgotten."""

    def __init__(self, max_bytes: int = MAX_SOURCE_BYTES, max_spilled_bytes: int = MAX_SPILLED_BYTES) -> None:
        self._max_bytes, self._max_spilled_bytes = max_bytes, max_spilled_bytes
        self._held: OrderedDict[str, Picture] = OrderedDict()
        self._spilled: OrderedDict[str, tuple[int, int, int]] = OrderedDict()
        self._num_bytes = self._num_spilled_bytes = 0
        self._folder: Path | None = None
        self._lock = RLock()

    def add(self, picture: Picture) -> None:
        """Keep a picture; adding it again makes it the latest."""
        with self._lock:
            if picture.content_hash in self._held:
                self._held.move_to_end(picture.content_hash)
                return
            if picture.content_hash in self._spilled:
                self._spilled.move_to_end(picture.content_hash)
                return
            self._held[picture.content_hash] = picture
            self._num_bytes += len(picture.png())
            while self._num_bytes > self._max_bytes and len(self._held) > 1:
                self._spill(self._held.popitem(last=False)[1])

    def get(self, content_hash: str) -> Picture:
        """A picture that was added."""
        with self._lock:
            entry = self._held.get(content_hash)
            if entry is not None:
                self._held.move_to_end(content_hash)
                return entry
            if content_hash not in self._spilled:
                raise ImageError(
                    f"the image {content_hash[:12]} is no longer held here: more than "
                    f"{self._max_spilled_bytes / 2**30:.0f} GiB of other images were used since"
                )
            self._spilled.move_to_end(content_hash)
            _, width, height = self._spilled[content_hash]
            return Picture.lazy(content_hash, width, height, self._path(content_hash).read_bytes)

    def _spill(self, picture: Picture) -> None:
        png, path = picture.png(), self._path(picture.content_hash)
        self._num_bytes -= len(png)
        with atomic_write(path, partial=path, num_bytes=len(png)):
            path.write_bytes(png)
        self._spilled[picture.content_hash] = len(png), picture.width, picture.height
        self._num_spilled_bytes += len(png)
        while self._num_spilled_bytes > self._max_spilled_bytes and len(self._spilled) > 1:
            oldest, (num_bytes, _, _) = self._spilled.popitem(last=False)
            self._path(oldest).unlink(missing_ok=True)
            self._num_spilled_bytes -= num_bytes

    def _path(self, content_hash: str) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="agent_r1_images_"))
            weakref.finalize(self, _remove_folder, self._folder, os.getpid())
        return self._folder / f"{content_hash}.png"


class InputCache:
    """Processed inputs by key, up to a number of bytes; those that were not used for the longest time go first."""

    def __init__(self, max_bytes: int = MAX_INPUT_BYTES) -> None:
        self.max_bytes = max_bytes
        """May be raised at any time."""
        self._held: OrderedDict[str, Inputs] = OrderedDict()
        self._lock = RLock()
        self.num_bytes = 0

    def add(self, key: str, inputs: Inputs) -> None:
        """Hold inputs; the latest are held whatever their size."""
        with self._lock:
            self._remove(key)
            self._held[key] = inputs
            self.num_bytes += _size(inputs)
            while self.num_bytes > self.max_bytes and len(self._held) > 1:
                self._remove(next(iter(self._held)))

    def get(self, key: str) -> Inputs | None:
        """Inputs that are still held."""
        with self._lock:
            entry = self._held.get(key)
            if entry is not None:
                self._held.move_to_end(key)
            return entry

    def _remove(self, key: str) -> None:
        removed = self._held.pop(key, None)
        if removed is not None:
            self.num_bytes -= _size(removed)


class BoundedInputs(Mapping[str, "npt.NDArray[Any]"]):
    """The inputs of one image: from the cache, or made again from its picture."""

    def __init__(self, key: str, cache: InputCache, make: Callable[[], Inputs]) -> None:
        self._key, self._cache, self._make = key, cache, make

    def _inputs(self) -> Inputs:
        inputs = self._cache.get(self._key)
        if inputs is None:
            inputs = self._make()
            self._cache.add(self._key, inputs)
        return inputs

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._inputs()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._inputs())

    def __len__(self) -> int:
        return len(self._inputs())


def _remove_folder(folder: Path, owner: int) -> None:
    """Remove a folder, but not in a fork of the process that made it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _size(inputs: Inputs) -> int:
    return sum(array.nbytes for array in inputs.values())
