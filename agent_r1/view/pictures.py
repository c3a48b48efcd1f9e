"""Pictures of a run folder, for the page: read by their content hash, and never anything but a PNG of a usual size.

A run folder may come from somebody else: names are hashes, links are not followed, files are bounded, and what does not
begin as a PNG is not served.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agent_r1.errors import DataError
from agent_r1.images import is_content_hash
from agent_r1.view.inside import open_inside

MAX_BYTES = 64 << 20
MAX_PIXELS = 1 << 26
MAX_SIDE = 1 << 15
MAX_EXPORTED = 64 << 20
"""The bytes of all pictures of an exported page."""
_PNG = struct.Struct(">8sI4sII")
"""The beginning of a PNG: signature, length and name of its header, width, height."""


def read_png(folder: Path, content_hash: str) -> bytes:
    """The PNG file of a picture of the run in `folder`. `FileNotFoundError` when it has none, `DataError` when there is
    something else in its place."""
    name = f"{content_hash}.png"
    if not is_content_hash(content_hash):
        raise DataError(f"{content_hash!r:.100} is not the content hash of a picture: 64 hexadecimal digits")
    with open_inside(folder, "trajectories", "images", name) as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise DataError(f"the picture {name} is larger than {MAX_BYTES:,} bytes; it is not shown")
    if len(content) < _PNG.size:
        raise DataError(f"the picture {name} is not a PNG")
    signature, length, header, width, height = _PNG.unpack_from(content)
    if (signature, length, header) != (b"\x89PNG\r\n\x1a\n", 13, b"IHDR"):
        raise DataError(f"the picture {name} is not a PNG")
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE and width * height <= MAX_PIXELS):
        raise DataError(f"the picture {name} has {width} x {height} pixels; it is not shown")
    return content


def reference_of(image: Any) -> dict[str, Any] | None:
    """A reference to a picture as the page takes it, `{"picture", "width", "height"}`; None for what is none."""
    if not isinstance(image, Mapping) or not is_content_hash(image.get("picture")):
        return None
    sizes = {name: image.get(name) for name in ("width", "height")}
    return {"picture": image["picture"], **{name: size for name, size in sizes.items() if type(size) is int}}


def references_in(message: Any) -> list[dict[str, Any]]:
    """The pictures of a message, in order."""
    content = message.get("content") if isinstance(message, Mapping) else None
    parts = [part for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []
    return [reference for part in parts if (reference := reference_of(part.get("image"))) is not None]


def hashes_in(value: Any) -> Iterator[str]:
    """The pictures that a shown record refers to, at every depth."""
    if isinstance(value, Mapping):
        if is_content_hash(value.get("picture")):
            yield value["picture"]
        value = list(value.values())
    if isinstance(value, list):
        for entry in value:
            if isinstance(entry, Mapping | list):
                yield from hashes_in(entry)


def exported_pictures(folder: Path, hashes: Iterator[str], bytes_left: int) -> tuple[dict[str, str], int]:
    """Pictures as `data:` addresses by their hashes, as long as `bytes_left` suffice, and how many bytes are left then.
    Those that are missing or cannot be shown are left out."""
    addresses: dict[str, str] = {}
    for content_hash in dict.fromkeys(hashes):
        try:
            address = f"data:image/png;base64,{base64.b64encode(read_png(folder, content_hash)).decode()}"
        except (FileNotFoundError, DataError):
            continue
        if len(address) <= bytes_left:
            addresses[content_hash] = address
            bytes_left -= len(address)
    return addresses, bytes_left
