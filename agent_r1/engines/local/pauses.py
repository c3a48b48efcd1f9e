"""Pauses of the garbage collector."""

from __future__ import annotations

import gc


def spare_what_is_loaded() -> None:
    """Take all there is now out of the garbage collector's view.

    Looking through the millions of objects of libraries and compilers takes longer than a hundred steps of decoding, or
    than a third of an update, and a GPU stands still meanwhile. Called when they have been loaded.
    """
    gc.collect()
    gc.freeze()
