"""Copies of what code of others may still change."""

from __future__ import annotations

from typing import Any


def own_values(value: Any) -> Any:
    """A copy of lists, tuples and dicts at every level; whatever else they hold is shared.

    >>> shown = {"content": ["tea"]}
    >>> own_values(shown) == shown, own_values(shown)["content"] is shown["content"]
    (True, False)
    """
    return _own(value, {})


def _own(value: Any, known: dict[int, Any]) -> Any:
    """Without recursion, but for tuples: a model may nest its arguments deeply. `known` has the copies so far by the
    id of the original: what contains itself has a copy that does."""
    root: list[Any] = [value]
    left: list[Any] = [root]
    while left:
        copy = left.pop()
        for key, entry in copy.items() if type(copy) is dict else enumerate(copy):
            kind = type(entry)
            if kind is dict or kind is list:
                if id(entry) not in known:
                    known[id(entry)] = entry.copy()
                    left.append(known[id(entry)])
                copy[key] = known[id(entry)]
            elif kind is tuple:
                copy[key] = tuple([_own(one, known) for one in entry])
    return root[0]
