"""`Picture`: one validated RGB image, known by its content."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from agent_r1.errors import ImageError

if TYPE_CHECKING:
    from PIL.Image import Image


class Picture:
    """An RGB image that cannot be changed. Equal pixels mean equal pictures; it is kept as PNG and decoded on demand.

    Made by `read_picture`; pictures with equal content share one object while one of them is alive.
    """

    __slots__ = ("__weakref__", "_load", "_png", "content_hash", "height", "width")

    content_hash: str
    """SHA-256 of width, height and pixels, in hexadecimal: it does not depend on how the image was stored."""
    width: int
    height: int
    _png: bytes | None
    _load: Callable[[], bytes] | None

    def __init__(
        self,
        *,
        content_hash: str,
        width: int,
        height: int,
        png: bytes | None = None,
        load: Callable[[], bytes] | None = None,
    ) -> None:
        if (png is None) == (load is None):
            raise ValueError("a Picture needs either its PNG or a function that loads it")
        for name, value in (("content_hash", content_hash), ("width", width), ("height", height)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_png", png)
        object.__setattr__(self, "_load", load)

    @classmethod
    def lazy(cls, content_hash: str, width: int, height: int, load: Callable[[], bytes]) -> Picture:
        """A picture whose PNG (as `png` returned it) is loaded when it is first asked for, and checked then."""
        picture = _PICTURES.get(content_hash)
        return cls(content_hash=content_hash, width=width, height=height, load=load) if picture is None else picture

    @classmethod
    def from_rgb(cls, image: Image, png: bytes | None = None) -> Picture:
        """The picture of a PIL image in mode RGB; `png` is that image as a plain PNG, if there is one already."""
        content_hash = hash_of(image)
        with _LOCK:
            picture = _PICTURES.get(content_hash)
        if picture is not None:
            return picture
        new = cls(
            content_hash=content_hash,
            width=image.width,
            height=image.height,
            png=encode_png(image) if png is None else png,
        )
        with _LOCK:
            return _PICTURES.setdefault(content_hash, new)

    def pil(self) -> Image:
        """A new PIL image in mode RGB; changing it changes no picture."""
        from PIL import Image

        with Image.open(io.BytesIO(self.png()), formats=("PNG",)) as image:
            return image.convert("RGB")

    def png(self) -> bytes:
        """The image as a PNG."""
        if self._png is None:
            object.__setattr__(self, "_png", self._load_png())
            object.__setattr__(self, "_load", None)
        assert self._png is not None
        return self._png

    def _load_png(self) -> bytes:
        from PIL import Image

        try:
            assert self._load is not None
            png = self._load()
            with Image.open(io.BytesIO(png), formats=("PNG",)) as image:
                is_same = image.size == (self.width, self.height) and hash_of(image.convert("RGB")) == self.content_hash
        except Exception as error:
            raise ImageError(f"the stored image {self.content_hash[:12]} cannot be read: {error}") from error
        if not is_same:
            raise ImageError(f"the stored image {self.content_hash[:12]} holds other pixels than it had")
        return png

    def __eq__(self, other: object) -> bool:
        return self.content_hash == other.content_hash if isinstance(other, Picture) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.content_hash)

    def __repr__(self) -> str:
        return f"Picture({self.width} x {self.height}, {self.content_hash[:12]})"

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a Picture cannot be changed (set '{name}')")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Picture cannot be changed (delete '{name}')")

    def __copy__(self) -> Picture:
        return self

    def __deepcopy__(self, memo: Any) -> Picture:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self.content_hash, self.width, self.height, self.png())


_PICTURES: WeakValueDictionary[str, Picture] = WeakValueDictionary()
_LOCK = Lock()


def _unpickle(content_hash: str, width: int, height: int, png: bytes) -> Picture:
    picture = Picture(content_hash=content_hash, width=width, height=height, png=png)
    with _LOCK:
        return _PICTURES.setdefault(content_hash, picture)


def hash_of(image: Image) -> str:
    """The content hash of a PIL image in mode RGB."""
    digest = hashlib.sha256(f"{image.width}x{image.height}:".encode())
    digest.update(image.tobytes())
    return digest.hexdigest()


def encode_png(image: Image) -> bytes:
    """A PIL image as PNG without metadata."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", compress_level=1, exif=b"", icc_profile=None)
    return buffer.getvalue()
