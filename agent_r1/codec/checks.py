"""Checks of received JSON: each returns the value when it has the expected form, else raises a `WireError`.

>>> integers([1, 2], "action.token_ids")
(1, 2)
>>> text(3, "task.task_id")
Traceback (most recent call last):
agent_r1.codec.checks.WireError: task.task_id must be text, got int
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
Check = Callable[[Any, str], T]

_MAX_INTEGER = 2**63
_MAX_NAMES = 5


class WireError(ValueError):
    """A received value that does not have the expected form."""


def text(value: Any, where: str) -> str:
    """The value, checked to be text."""
    return value if isinstance(value, str) else _refuse(value, where, "text")


def flag(value: Any, where: str) -> bool:
    """The value, checked to be true or false."""
    return value if isinstance(value, bool) else _refuse(value, where, "true or false")


def mapping(value: Any, where: str) -> dict[str, Any]:
    """The value, checked to be an object."""
    return value if isinstance(value, dict) else _refuse(value, where, "an object")


def integer(value: Any, where: str) -> int:
    """A whole number of 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or not -_MAX_INTEGER <= value < _MAX_INTEGER:
        _refuse(value, where, "a whole number of at most 64 bits")
    return int(value)


def number(value: Any, where: str) -> float:
    """The value, checked to be a finite number."""
    try:
        converted = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    except OverflowError:
        converted = None
    if converted is None or not math.isfinite(converted):
        _refuse(value, where, "a finite number")
    return float(value)


def optional(check: Check[T]) -> Check[T | None]:
    """A check that accepts None too."""
    return lambda value, where: None if value is None else check(value, where)


def each(check: Check[T]) -> Check[tuple[T, ...]]:
    """A list of such values, as a tuple."""

    def check_all(value: Any, where: str) -> tuple[T, ...]:
        if not isinstance(value, list):
            _refuse(value, where, "a list")
        return tuple(check(item, f"{where}[{number}]") for number, item in enumerate(value))

    return check_all


def integers(value: Any, where: str) -> tuple[int, ...]:
    """A list of whole numbers, as a tuple."""
    return each(integer)(value, where)


def record(value: Any, where: str, fields: Mapping[str, Check[Any]], required: Iterable[str]) -> dict[str, Any]:
    """An object with these fields and no others, each of them checked."""
    entries = mapping(value, where)
    missing = [name for name in required if name not in entries]
    unknown = [name[:40] for name in entries if name not in fields]
    if missing:
        raise WireError(f"{where} has no {', '.join(missing)}")
    if unknown:
        names = ", ".join(repr(name) for name in unknown[:_MAX_NAMES])
        raise WireError(f"{where} has unknown fields: {names}; known are {', '.join(fields)}")
    return {name: fields[name](item, f"{where}.{name}") for name, item in entries.items()}


def _refuse(value: Any, where: str, expected: str) -> Any:
    value_text = f"{value!r}" if isinstance(value, float | bool) else type(value).__name__
    raise WireError(f"{where} must be {expected}, got {value_text}")
