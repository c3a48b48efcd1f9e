"""What the model of tables reads, and the form of what it writes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from .table import Table, shorten, show

SYSTEM = (
    "Answer the question about the table. Query the table t with SQL (SQLite), or calculate with Python, where rows is "
    "a list of dictionaries. A column x_num is the first number in x, x_date its date as YYYY-MM-DD. "
    "Read the output, and correct the program if it failed. Then answer in one line:\n"
    "Answer: value | value\n"
)
SCALE = "In a second line give the scale of the answer, if it has one: Scale: thousand, million, billion or percent\n"
MAX_TEXT = 1200
"""Characters of the paragraphs that are shown."""
_WORD = re.compile(r"[a-z0-9]+")


def question_messages(table: Table, question: str, paragraphs: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The messages an episode begins with. Paragraphs, also none, say that the answer may have a scale."""
    system = SYSTEM.rstrip("\n") if paragraphs is None else (SYSTEM + SCALE).rstrip("\n")
    text = f"\nText: {relevant_text(question, paragraphs)}" if paragraphs else ""
    shown = f"Table t, {len(table.rows)} rows:\n{show(table)}{text}\nQuestion: {question}"
    return [{"role": "system", "content": system}, {"role": "user", "content": shown}]


def relevant_text(question: str, paragraphs: Sequence[str], budget: int = MAX_TEXT) -> str:
    """The paragraphs that have most words of the question, in their order, as far as the budget goes."""
    asked = set(_WORD.findall(question.lower()))
    found = [set(_WORD.findall(text.lower())) for text in paragraphs]
    ranked = sorted(range(len(paragraphs)), key=lambda index: -len(asked & found[index]) / (len(asked) + 1))
    chosen: list[int] = []
    for index in ranked:
        if not chosen or sum(len(paragraphs[one]) for one in chosen) + len(paragraphs[index]) <= budget:
            chosen.append(index)
    return "\n".join(shorten(paragraphs[index], budget) for index in sorted(chosen))


def call_message(tool: str, program: str) -> dict[str, Any]:
    """The message of a model that runs a program."""
    function = {"name": tool, "arguments": {"query" if tool == "sql" else "code": program}}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call00000", "type": "function", "function": function}],
    }


def output_message(tool: str, text: str) -> dict[str, Any]:
    """The message with the output."""
    return {"role": "tool", "name": tool, "tool_call_id": "call00000", "content": text}


def answer_text(values: Sequence[str], scale: str = "") -> str:
    """What a model says at the end.

    >>> answer_text(["12.6"], "million")
    'Answer: 12.6\\nScale: million'
    """
    return f"Answer: {' | '.join(values)}" + (f"\nScale: {scale}" if scale else "")


def answer_message(values: Sequence[str], scale: str = "") -> dict[str, Any]:
    """The message that ends an episode."""
    return {"role": "assistant", "content": answer_text(values, scale)}
