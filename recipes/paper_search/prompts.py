"""What the model of paper_search reads, and the form of what it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

KINDS = {
    "inline_citation": "Which papers does this sentence cite?",
    "related_work": "Which papers does the paper with this title cite?",
}
"""What is asked, by kind of query."""

SYSTEM = (
    "Find papers. Tools show papers by their titles; at most {max_read} may be shown. "
    "Look for different topics of the text. When no papers are left, write the numbers of the relevant ones as "
    "<answer>1, 4</answer>."
)


def question_messages(kind: str, query: str, max_read: int) -> list[dict[str, Any]]:
    """The messages an episode begins with."""
    system = SYSTEM.format(max_read=max_read)
    return [{"role": "system", "content": system}, {"role": "user", "content": f"{KINDS[kind]}\n{query}"}]


def call_message(tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What a model says that calls a tool."""
    function = {"name": tool, "arguments": dict(arguments)}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call00000", "type": "function", "function": function}],
    }


def shown_message(tool: str, text: str) -> dict[str, Any]:
    """What the tool answered."""
    return {"role": "tool", "name": tool, "tool_call_id": "call00000", "content": text}


def answer_message(numbers: Sequence[int]) -> dict[str, Any]:
    """What a model says at the end.

    >>> answer_message([1, 4])["content"]
    '<answer>1, 4</answer>'
    """
    return {"role": "assistant", "content": f"<answer>{', '.join(map(str, numbers))}</answer>"}
