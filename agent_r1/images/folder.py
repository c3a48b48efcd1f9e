"""`PictureFolder`: pictures as files, each once, under the hash of what they show."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from agent_r1.errors import ImageError
from agent_r1.files import write_atomically
from agent_r1.images.picture import Picture

_HASH = re.compile(r"[0-9a-f]{64}")


class PictureFolder:
    """A folder of files `<content hash>.png`.

    folder = PictureFolder(Path("runs/zoom/trajectories/images"))
    folder.write([picture])
    folder.picture(picture.content_hash, picture.width, picture.height)     # the same one; its file is read when needed
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, Picture] = {}

    def write(self, pictures: Iterable[Picture]) -> None:
        """Write those that are not there yet. `StorageError` when the disk is full."""
        for picture in pictures:
            file = self.path / f"{picture.content_hash}.png"
            if not file.is_file():
                write_atomically(file, picture.png())

    def picture(self, content_hash: str, width: int, height: int) -> Picture:
        """The picture with this hash. Its file is read at its first use, which raises `ImageError` when the file is
        missing or shows something else; a hash that is none raises `ImageError` at once."""
        if not is_content_hash(content_hash):
            raise ImageError(f"{content_hash!r:.80} is not the content hash of a picture")
        picture = self._known.get(content_hash)
        if picture is None:
            load = partial(_read, self.path / f"{content_hash}.png")
            picture = self._known[content_hash] = Picture.lazy(content_hash, width, height, load)
        return picture


def is_content_hash(text: object) -> bool:
    """Whether a text is a content hash: 64 hexadecimal digits."""
    return isinstance(text, str) and _HASH.fullmatch(text) is not None


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ImageError(f"the picture {file} cannot be read: {error.strerror or error}") from error
