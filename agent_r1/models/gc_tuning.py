"""Pauses of the garbage collector."""

from __future__ import annotations

import gc

NEW_OBJECTS = 10_000
"""So many new objects are waited for before the youngest are looked through. With Python's own 700, which are a few
turns of a few episodes, hundreds of episodes take a twentieth to a tenth more processor time."""


def freeze_gc() -> None:
    """Take all there is now out of the garbage collector's view, and let it look less often at what comes.

    Looking through the millions of objects of libraries and compilers takes longer than a hundred steps of decoding, or
    than a third of an update, and a GPU stands still meanwhile. Called when they have been loaded.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])
