"""What the model of my_task reads, and what the demonstrations say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def question(person: str) -> list[dict[str, Any]]:
    """The messages an episode begins with."""
    return [{"role": "user", "content": f"What colour is the locker that {person} has?"}]


def page(messages: Sequence[Mapping[str, Any]], notes: Mapping[str, str]) -> list[dict[str, Any]]:
    """The whole model input of a step: the row's messages, the last of them with the notes below it."""
    lines = [messages[-1]["content"], *(f"{word}: {entry}" for word, entry in notes.items())]
    return [*map(dict, messages[:-1]), {**messages[-1], "content": "\n".join(lines)}]


def demonstrations(person: str, locker: str, colour: str, *, careful: bool) -> list[dict[str, Any]]:
    """One page per step: open the person, open the locker, say the colour. The careless stop at the locker."""
    found = {person: locker, locker: colour} if careful else {person: locker}
    notes: dict[str, str] = {}
    rows = []
    for word, entry in found.items():
        rows.append([*page(question(person), notes), {"role": "assistant", "content": f"open {word}"}])
        notes[word] = entry
    rows.append([*page(question(person), notes), {"role": "assistant", "content": entry}])
    return [{"messages": messages} for messages in rows]
