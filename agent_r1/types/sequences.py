"""Sequences of tokens, messages and characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def common_prefix(left: Sequence[Any], right: Sequence[Any]) -> int:
    """How many leading entries of two sequences of one kind are equal.

    >>> common_prefix((1, 2, 3), (1, 2, 4, 5)), common_prefix("abc", "ab"), common_prefix([], [1])
    (2, 2, 0)
    """
    # Mostly one continues the other, which a single comparison finds.
    shorter = min(len(left), len(right))
    if left[:shorter] == right[:shorter]:
        return shorter
    return next((index for index in range(shorter) if left[index] != right[index]), shorter)
