"""What the model of forecasting reads, and the form of what it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from .models import MODELS

SYSTEM = (
    "Forecast the next 24 hours of a series. Look at it with the tools, in at most three turns. Then answer with "
    "models, if you like with weights and an offset, as <answer>0.6 ar + 0.4 seasonal - 0.2</answer>, or with 24 "
    "numbers. "
    f"Models: {', '.join(MODELS)}."
)


def question_messages(series: str, time: datetime, last_value: float) -> list[dict[str, Any]]:
    """The messages an episode begins with."""
    question = f"{series}, hourly, last value {last_value:.1f}. The first hour to forecast: {time:%A %Y-%m-%d %H:%M}."
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


def call_message(calls: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """What a model says that calls tools: names and arguments."""
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": f"call{number:05d}",
                "type": "function",
                "function": {"name": name, "arguments": dict(arguments)},
            }
            for number, (name, arguments) in enumerate(calls)
        ],
    }


def result_message(number: int, tool: str, text: str) -> dict[str, Any]:
    """What the tool of a call answered."""
    return {"role": "tool", "name": tool, "tool_call_id": f"call{number:05d}", "content": text}


def answer_message(answer: str) -> dict[str, Any]:
    """What a model says at the end.

    >>> answer_message("ar + mix")["content"]
    '<answer>ar + mix</answer>'
    """
    return {"role": "assistant", "content": f"<answer>{answer}</answer>"}
