"""What the model of my_task reads, and what the demonstrations say."""

from __future__ import annotations

from typing import Any

from .tools import my_task_look_up


def question(person: str) -> list[dict[str, Any]]:
    """The messages an episode begins with."""
    return [{"role": "user", "content": f"What colour is the locker that {person} has?"}]


def demonstrations(person: str, locker: str, colour: str, *, careful: bool) -> list[dict[str, Any]]:
    """One conversation: look up the person, look up the locker, say the colour. The careless stop at the locker."""
    found = {person: locker, locker: colour} if careful else {person: locker}
    messages = question(person)
    for word, answer in found.items():
        messages += [look_up(word), {"role": "tool", "content": answer}]
    messages.append({"role": "assistant", "content": messages[-1]["content"]})
    return [{"messages": messages, "tools": [dict(my_task_look_up.tool_schema)]}]


def look_up(word: str) -> dict[str, Any]:
    """The message of a model that calls the tool."""
    call = {"name": my_task_look_up.name, "arguments": {"word": word}}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
