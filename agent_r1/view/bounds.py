"""Bounded answers: long texts, lists and objects are cut, and the cuts are named so that the rest can be fetched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_TEXT = 20_000
MAX_TOTAL = 3_000_000
"""Characters of one answer; after that, texts are cut to `_SHORT`."""
MAX_ITEMS = 2_000
MAX_DEPTH = 40
MAX_KEY = 300
MAX_CUTS = 1_000
MAX_PATH = 1_000
MAX_NODES = 100_000
"""Values of one answer: YAML can repeat a value without repeating its text."""
_SHORT = 200


@dataclass(slots=True)
class Bounds:
    """Cuts values and remembers where."""

    max_text: int = MAX_TEXT
    """Characters of one text."""
    max_nodes: int = MAX_NODES
    """Values, at every depth."""
    cut: list[dict[str, Any]] = field(default_factory=list)
    """`{"path", "chars"}` of each text that was cut, `{"path", "items"}` of each list or object."""
    _total: int = 0
    _nodes: int = 0

    def apply(self, value: Any, path: str | None = None, depth: int = 0) -> Any:
        """The value with everything too long cut."""
        self._nodes += 1
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, Mapping | list | tuple) and (depth > MAX_DEPTH or self._nodes > self.max_nodes):
            self._note(path, items=len(value))
            return "… [more inside]"
        if isinstance(value, Mapping):
            self._note_items(value, path)
            entries = list(value.items())[:MAX_ITEMS]
            self._total += 4 * len(entries)
            return {str(key)[:MAX_KEY]: self.apply(entry, _below(path, key), depth + 1) for key, entry in entries}
        if isinstance(value, list | tuple):
            self._note_items(value, path)
            self._total += 4 * min(len(value), MAX_ITEMS)
            return [self.apply(entry, _below(path, i), depth + 1) for i, entry in enumerate(value[:MAX_ITEMS])]
        return value

    def _text(self, text: str, path: str | None) -> str:
        limit = self.max_text if self._total < MAX_TOTAL else _SHORT
        self._total += min(len(text), limit)
        if len(text) <= limit:
            return text
        self._note(path, chars=len(text))
        return f"{text[:limit]}… [{len(text) - limit:,} more characters]"

    def _note_items(self, value: Any, path: str | None) -> None:
        if len(value) > MAX_ITEMS:
            self._note(path, items=len(value))

    def _note(self, path: str | None, **size: int) -> None:
        if len(self.cut) < MAX_CUTS:
            self.cut.append({"path": (path or "")[:MAX_PATH], **size})


def _below(path: str | None, key: object) -> str:
    return str(key) if path is None else f"{path}.{key}"


def text_at(value: Any, path: str) -> str | None:
    """The text at a path of `Bounds.cut`; None when there is none.

    >>> text_at({"steps": [{"text": "a"}]}, "steps.0.text")
    'a'
    """
    if isinstance(value, str):
        return value if not path else None
    if isinstance(value, list | tuple):
        head, _, rest = path.partition(".")
        inside = head.isascii() and head.isdigit() and len(head) < 10 and int(head) < len(value)
        return text_at(value[int(head)], rest) if inside else None
    if not isinstance(value, Mapping):
        return None
    # Keys may contain dots themselves.
    for key, entry in value.items():
        if path == str(key) or path.startswith(f"{key}."):
            text = text_at(entry, path[len(str(key)) + 1 :])
            if text is not None:
                return text
    return None
