"""Padded sizes."""

from __future__ import annotations


def round_up(count: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `count`.

    >>> round_up(1, 16), round_up(16, 16), round_up(17, 16)
    (16, 16, 32)
    """
    return -(-count // multiple) * multiple
