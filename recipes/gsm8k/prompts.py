"""What the model of gsm8k reads, and what the demonstrations say."""

from __future__ import annotations

from typing import Any

SYSTEM = "Solve the problem step by step. End with a line that has #### and the answer as a number: #### 42"


def question(text: str) -> list[dict[str, Any]]:
    """The messages an episode begins with."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]


def demonstration(text: str, solution: str, answer: str) -> dict[str, Any]:
    """A question with its worked solution, as a row for the warm start."""
    return {"messages": [*question(text), {"role": "assistant", "content": f"{solution}\n#### {answer}"}]}
