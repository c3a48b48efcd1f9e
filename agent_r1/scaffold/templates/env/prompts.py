"""What the model of my_task reads, and what the demonstrations say."""

from __future__ import annotations

from typing import Any


def question(person: str) -> list[dict[str, Any]]:
    """The messages an episode begins with."""
    return [{"role": "user", "content": f"What colour is the locker that {person} has?"}]


def demonstrations(person: str, locker: str, colour: str, *, careful: bool) -> list[dict[str, Any]]:
    """One conversation: open the person, open the locker, say the colour. The careless stop at the locker."""
    found = {person: locker, locker: colour} if careful else {person: locker}
    messages = question(person)
    for word, entry in found.items():
        messages += [{"role": "assistant", "content": f"open {word}"}, {"role": "user", "content": entry}]
    messages.append({"role": "assistant", "content": messages[-1]["content"]})
    return [{"messages": messages}]
