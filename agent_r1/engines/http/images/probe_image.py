"""The picture of the probe: always the same pixels."""

from __future__ import annotations

import random

from agent_r1.images import Picture, read_picture

_COLUMNS, _ROWS, _SQUARE = 8, 6, 8


def probe_picture() -> Picture:
    """Squares of random colors. A server that resizes, orders or normalises pixels in another way sees other ones."""
    from PIL import Image

    rng = random.Random(0)
    squares = Image.frombytes("RGB", (_COLUMNS, _ROWS), rng.randbytes(3 * _COLUMNS * _ROWS))
    return read_picture(squares.resize((_SQUARE * _COLUMNS, _SQUARE * _ROWS), Image.Resampling.NEAREST))
