"""What the model of math_code reads, with the tool and without it."""

from __future__ import annotations

from typing import Any

TOOL = "python"

SYSTEM = (
    "Solve the problem. First write a short Python program that computes the answer and prints it; sympy is installed. "
    "Read its output, and correct the program if it failed. Then give the final answer in \\boxed{}."
)
PLAIN_SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."


def question(problem: str) -> list[dict[str, Any]]:
    """The messages an episode begins with."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": problem}]


def plain_question(problem: str) -> list[dict[str, Any]]:
    """The messages of the same problem for a model that has no tool."""
    return [{"role": "system", "content": PLAIN_SYSTEM}, {"role": "user", "content": problem}]


def program(words: str, code: str) -> dict[str, Any]:
    """The message of a model that says something and runs a program."""
    function = {"name": TOOL, "arguments": {"code": code}}
    return {
        "role": "assistant",
        "content": words,
        "tool_calls": [{"id": "call00000", "type": "function", "function": function}],
    }


def output(text: str) -> dict[str, Any]:
    """The message with what a program printed."""
    return {"role": "tool", "name": TOOL, "tool_call_id": "call00000", "content": text}


def final(answer: str, words: str = "The answer is") -> dict[str, Any]:
    """The message that ends an episode."""
    return {"role": "assistant", "content": f"{words} $\\boxed{{{answer}}}$."}
