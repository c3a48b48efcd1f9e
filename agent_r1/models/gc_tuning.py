"""Tuning of the garbage collector."""

from __future__ import annotations

import gc

NEW_OBJECTS = 100_000
"""The gen-0 threshold: about one pass per batch of episodes. Python's default of 700 is a few turns of a few episodes,
and each pass looks at all that hundreds of them hold."""


def freeze_gc() -> None:
    """Freeze current objects (gc.freeze) and raise the gen-0 threshold.

    A pass over the millions of objects of libraries and compilers takes longer than a hundred decoding steps, or than a
    third of an update, and the GPU idles meanwhile. Called after they have been loaded.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])
