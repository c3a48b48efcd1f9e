"""What the model of hotpotqa reads, and the words of the demonstrations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SYSTEM = (
    "Answer the question. Search for what you need, more than once where one fact leads to the next. "
    "Then write the answer alone, a few words, as <answer>...</answer>."
)


def question_messages(question: str) -> list[dict[str, Any]]:
    """The messages an episode begins with."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


def search_message(queries: Sequence[str], thought: str) -> dict[str, Any]:
    """What a model says that searches: a thought, and one call with one query or several."""
    arguments = {"query": queries[0] if len(queries) == 1 else list(queries)}
    call = {"id": "call00000", "type": "function", "function": {"name": "search", "arguments": arguments}}
    return {"role": "assistant", "content": thought, "tool_calls": [call]}


def found_message(text: str) -> dict[str, Any]:
    """What the tool answered."""
    return {"role": "tool", "name": "search", "tool_call_id": "call00000", "content": text}


def answer_message(answer: str) -> dict[str, Any]:
    """What a model says that has found the answer.

    >>> answer_message("Paris")["content"]
    '<answer>Paris</answer>'
    """
    return {"role": "assistant", "content": f"<answer>{answer}</answer>"}


def thought_about(topics: Sequence[str]) -> str:
    """The thought before a search.

    >>> thought_about([]), thought_about(["Tea", "Coffee"])
    ('I search for the question.', 'I need to know about Tea and Coffee.')
    """
    return f"I need to know about {' and '.join(topics)}." if topics else "I search for the question."
