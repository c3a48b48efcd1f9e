"""Reads images of any form that messages hold into pictures, and refuses what is broken, huge or hostile.

Nothing is downloaded. A path must lie inside the folder that the caller names. The size is checked before pixels are
decoded, so a small file that would become gigabytes is refused at once.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_r1.errors import AgentR1Error, ImageError, require_installed
from agent_r1.images.picture import Picture

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""The file formats that are read; of an animation the first frame."""

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:")
_DATA_URL = re.compile(r"data:(?P<media>[\w.+-]+/[\w.+-]+)?(?:;[\w-]+=[^;,]*)*(?P<base64>;base64)?,", re.IGNORECASE)
_CONTENT_KEYS = ("image", "image_url", "url", "bytes", "base64", "data", "path")
"""Where content parts of different programs have the image: OpenAI, Hugging Face, MCP."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageLimits:
    """What an image may be at most."""

    max_pixels: int = 4096 * 4096
    """Width times height."""
    max_side: int = 32_768
    """Width or height."""
    max_bytes: int = 64 * 2**20
    """Size of the file, or of the bytes it was given as."""


DEFAULT_LIMITS = ImageLimits()


def read_picture(
    source: Any, *, folder: str | Path | None = None, limits: ImageLimits | None = None, where: str = "the image"
) -> Picture:
    """The picture of a file's bytes, a data URL, a path inside `folder`, a PIL image, an array of bytes
    (height x width x channels) or a content part with any of them. Raises `ImageError`, which begins with `where`.

    EXIF orientation is applied and metadata dropped; transparent parts become white; 16-bit channels keep their upper
    8 bits.
    """
    if isinstance(source, Picture):
        _check_size(source.width, source.height, limits or DEFAULT_LIMITS, where)
        return source
    require_installed("PIL", "pillow", "images", "reading images")
    return _read(source, None if folder is None else Path(folder), limits or DEFAULT_LIMITS, where)


def _read(source: Any, folder: Path | None, limits: ImageLimits, where: str) -> Picture:
    from PIL.Image import Image

    if isinstance(source, Picture):
        return read_picture(source, limits=limits, where=where)
    if isinstance(source, bytes | bytearray | memoryview):
        return _decode(bytes(source), limits, where)
    if isinstance(source, Image):
        return _from_pil(source, limits, where)
    if isinstance(source, Mapping):
        return _read(_content_of(source, where), folder, limits, where)
    if isinstance(source, str) and source[:5].lower() == "data:":
        return _decode(_bytes_of_url(source, limits, where), limits, where)
    if isinstance(source, str | Path):
        return _decode(_bytes_of_file(source, folder, limits, where), limits, where)
    if hasattr(source, "__array_interface__"):
        return _from_array(source, limits, where)
    raise ImageError(
        f"{where} is of type {type(source).__name__}; give bytes, a data URL, a path, a PIL image or an array of bytes"
    )


def _content_of(part: Mapping[str, Any], where: str) -> Any:
    """What a content part holds its image as."""
    for key in _CONTENT_KEYS:
        value = part.get(key)
        if value is None:
            continue
        if key in ("base64", "data") and isinstance(value, str) and value[:5].lower() != "data:":
            return f"data:image/unknown;base64,{value}"
        return value
    raise ImageError(f"{where} has no content: its part has the keys {', '.join(map(str, part)) or 'none'}")


def _bytes_of_url(url: str, limits: ImageLimits, where: str) -> bytes:
    head = _DATA_URL.match(url)
    if head is None or not head["base64"] or not (head["media"] or "").lower().startswith("image/"):
        raise ImageError(f"{where} has the data URL '{url[:40]}...'; only data:image/...;base64,... is read")
    _check_bytes((len(url) - head.end()) * 3 // 4, limits, where)
    try:
        return base64.b64decode(url[head.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageError(f"{where} has a data URL whose base64 is broken: {error}") from error


def _bytes_of_file(source: str | Path, folder: Path | None, limits: ImageLimits, where: str) -> bytes:
    text = str(source)[:200]
    if isinstance(source, str) and _SCHEME.match(source):
        raise ImageError(f"{where} is at '{text}': nothing is downloaded at run time; store the file beside the data")
    if folder is None:
        raise ImageError(f"{where} is the path '{text}', and no folder is known that it may lie in; give its bytes")
    try:
        root = folder.resolve(strict=True)
        path = (root / source).resolve(strict=True)
        if not path.is_relative_to(root):
            raise ImageError(f"{where} is at '{text}', outside the folder {folder}; move it there")
        if not path.is_file():
            raise ImageError(f"{where} is at '{text}', which is not a file")
        with path.open("rb") as file:
            content = file.read(limits.max_bytes + 1)
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, AgentR1Error):
            raise
        raise ImageError(f"{where} is at '{text}' in {folder}, which cannot be read: {error}") from error
    return content


def _decode(content: bytes, limits: ImageLimits, where: str) -> Picture:
    from PIL import Image, UnidentifiedImageError

    _check_bytes(len(content), limits, where)
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            _check_size(*image.size, limits, where)
            image.load()
            is_plain = image.format == "PNG" and image.mode == "RGB" and not image.info and not image.getexif()
            return Picture.from_rgb(image, content) if is_plain else Picture.from_rgb(_as_rgb(image, where))
    except UnidentifiedImageError as error:
        raise ImageError(f"{where} is no image in a format that is read ({', '.join(FORMATS)})") from error
    except Exception as error:  # Pillow raises errors of many kinds for broken files
        if isinstance(error, AgentR1Error):
            raise
        raise ImageError(f"{where} is broken or hostile: {type(error).__name__}: {error}") from error


def _from_pil(image: Image, limits: ImageLimits, where: str) -> Picture:
    _check_size(*image.size, limits, where)
    try:
        return Picture.from_rgb(_as_rgb(image, where))
    except Exception as error:
        if isinstance(error, AgentR1Error):
            raise
        raise ImageError(f"{where} cannot be read: {type(error).__name__}: {error}") from error


def _from_array(array: Any, limits: ImageLimits, where: str) -> Picture:
    import numpy as np
    from PIL import Image

    values = np.asarray(array)
    shape = values.shape
    if values.dtype != np.uint8 or not (len(shape) == 2 or (len(shape) == 3 and shape[2] in (3, 4))) or 0 in shape:
        raise ImageError(
            f"{where} is an array of {values.dtype} with shape {shape}; give uint8 with height x width x 3"
        )
    _check_size(shape[1], shape[0], limits, where)
    return _from_pil(Image.fromarray(np.ascontiguousarray(values)), limits, where)


def _as_rgb(image: Image, where: str) -> Image:
    """The image upright and in mode RGB, without metadata."""
    from PIL import Image, ImageOps

    upright = ImageOps.exif_transpose(image)
    if upright.has_transparency_data:
        colors = upright.convert("RGBA")
        plain = Image.alpha_composite(Image.new("RGBA", colors.size, (255, 255, 255, 255)), colors).convert("RGB")
    elif upright.mode == "F":
        raise ImageError(f"{where} has floating-point pixels, whose range is not known; convert it to RGB")
    elif upright.mode.startswith("I"):
        plain = _upper_byte(upright).convert("RGB")
    else:
        plain = upright.convert("RGB")
    # A copy without `info` (comments, profiles, EXIF).
    return Image.frombytes("RGB", plain.size, plain.tobytes())


def _upper_byte(image: Image) -> Image:
    """A grey image of 16 bits with 8: the upper ones."""
    import numpy as np
    from PIL import Image

    values = np.clip(np.asarray(image, dtype=np.int64), 0, 65535) >> 8
    return Image.fromarray(values.astype(np.uint8))


def _check_bytes(num_bytes: int, limits: ImageLimits, where: str) -> None:
    if num_bytes > limits.max_bytes:
        raise ImageError(f"{where} is a file of more than {limits.max_bytes / 2**20:.0f} MiB; make it smaller")
    if not num_bytes:
        raise ImageError(f"{where} is empty")


def _check_size(width: int, height: int, limits: ImageLimits, where: str) -> None:
    if width < 1 or height < 1:
        raise ImageError(f"{where} has {width} x {height} pixels")
    if width * height > limits.max_pixels or max(width, height) > limits.max_side:
        raise ImageError(
            f"{where} has {width} x {height} pixels; images of at most {limits.max_pixels:,} pixels, and "
            f"{limits.max_side:,} on one side, are read. Make it smaller"
        )
