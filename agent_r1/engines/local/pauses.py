"""Pauses of the garbage collector."""

from __future__ import annotations

import gc
from functools import cache


@cache
def spare_the_libraries() -> None:
    """Take all that is loaded out of the garbage collector's view, once a process.

    Looking through the millions of objects of the libraries takes longer than a hundred steps of decoding, or than a
    tenth of an update, and a GPU stands still meanwhile.
    """
    gc.collect()
    gc.freeze()
