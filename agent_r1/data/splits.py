"""Holding rows out: for validation where a data set has only rows to train on and to test on."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

RowT = TypeVar("RowT")


def hold_out(rows: Sequence[RowT], count: int, *, key: Callable[[RowT], str]) -> tuple[list[RowT], list[RowT]]:
    """The rows to train on, and up to `count` rows that are held out, at most a fifth of all and at least one.

    The hash of a row's `key`, such as its question, decides. So the choice does not depend on the order of the rows,
    and rows with the same question are on the same side.

    >>> kept, held = hold_out(["a", "b", "c", "d", "a", "e", "f", "g", "h", "i"], 2, key=str)
    >>> len(kept), len(held), set(kept) & set(held)
    (8, 2, set())
    """
    max_held = max(1, min(count, len(rows) // 5))
    keys = [key(row) for row in rows]
    counts = Counter(keys)
    chosen: set[str] = set()
    num_held = 0
    for text in sorted(set(keys), key=lambda text: hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()):
        if num_held + counts[text] > max_held and chosen:
            break
        chosen.add(text)
        num_held += counts[text]
    sides = [text in chosen for text in keys]
    return (
        [row for row, is_held in zip(rows, sides, strict=True) if not is_held],
        [row for row, is_held in zip(rows, sides, strict=True) if is_held],
    )
