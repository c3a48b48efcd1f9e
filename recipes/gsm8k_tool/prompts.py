"""What the model of gsm8k_tool reads, and what the demonstrations say."""

from __future__ import annotations

from typing import Any

SYSTEM = (
    "Solve the problem step by step. Use calculate for every calculation. "
    "End with a line that has #### and the answer as a number: #### 42"
)

PLAIN = r"Solve the problem step by step. Put the answer, a number, in a box: \boxed{42}"


def question(text: str) -> list[dict[str, Any]]:
    """The messages an episode begins with."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]


def plain_question(text: str) -> list[dict[str, Any]]:
    """The messages of an episode without tools."""
    return [{"role": "system", "content": PLAIN}, {"role": "user", "content": text}]


def call(words: str, name: str, **arguments: Any) -> dict[str, Any]:
    """The message of a model that says something and calls a tool."""
    function = {"name": name, "arguments": arguments}
    made = {"id": "call00000", "type": "function", "function": function}
    return {"role": "assistant", "content": words, "tool_calls": [made]}


def result(name: str, text: str) -> dict[str, Any]:
    """The message with a tool's answer."""
    return {"role": "tool", "name": name, "tool_call_id": "call00000", "content": text}


def answer(words: str, number: str) -> dict[str, Any]:
    """The message that ends an episode."""
    return {"role": "assistant", "content": f"{words}\n#### {number}".lstrip()}
