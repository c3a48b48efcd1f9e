"""A renderer for a model that sees, and pictures, for tests of what carries them."""

from __future__ import annotations

import base64
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image

from agent_r1.chat import ChatRenderer, load_renderer
from agent_r1.images import Picture, read_picture
from tests.helpers.tiny_vlms import make_tiny_vlm


@cache
def seeing_renderer() -> ChatRenderer:
    """The renderer of a tiny LLaVA."""
    with tempfile.TemporaryDirectory() as folder:
        return load_renderer(make_tiny_vlm("llava", Path(folder) / "model"))


def drawn(red: int = 200, size: tuple[int, int] = (40, 30)) -> Picture:
    """A picture of one color."""
    return read_picture(Image.new("RGB", size, (red, 40, 80)))


def address_of(picture: Picture) -> str:
    """The data URL of a picture."""
    return f"data:image/png;base64,{base64.b64encode(picture.png()).decode()}"


def sent(picture: Picture) -> dict[str, Any]:
    """A picture as clients of the OpenAI API send it."""
    return {"type": "image_url", "image_url": {"url": address_of(picture)}}


def part(picture: Picture) -> dict[str, Any]:
    """A picture in a message of an environment."""
    return {"type": "image", "image": picture}
