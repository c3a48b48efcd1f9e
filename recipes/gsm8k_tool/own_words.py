r"""Demonstrations in a model's own words: the calculations of a solution that it wrote become calls.

    agent-r1 demonstrate recipes/gsm8k_tool --out own.jsonl model.path=MODEL env=gsm8k_plain \
        reward.function=reward_fn:score_boxed rollout.max_tokens=512
    agent-r1 train recipes/gsm8k_tool model.path=MODEL 'sft.data=[own.jsonl]'

Without tools the model solves training problems in one turn, as it learned to. What it wrote is kept when the number in
its last box is right: "In May: \[ 48 / 2 = 24 \text{ clips} \]" becomes the words "In May:", the call
`calculate(48 / 2)` and, once the result is there, "\[ 48 / 2 = 24 \text{ clips} \]"; `\boxed{72}` becomes `#### 72`.
So a larger model writes word for word what it would have written without tools, and keeps what it knows of solving
problems, which the short solutions of GSM8K would take from it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent_r1.data import solved_episode
from agent_r1.rewards import number_matches
from agent_r1.tools.builtin import evaluate, format_number
from agent_r1.types import StopReason, Task, Trajectory

from . import prompts, reward_fn, tools

MAX_CALLS = 4
"""The steps of an episode that leave one for the answer."""

_UNIT = r"(?:\s*\\text\{[^{}]*\})?"
# Atomic, as sums are below: no match begins with a part of one, and trying the parts of a long sum takes too long.
_NUMBER = rf"(?>(?:\\?\$\s*)?(?:\d{{1,3}}(?:,\d{{3}})+(?!\d)|\d+)(?:\.\d+)?(?:\s*\\?%)?{_UNIT})"
_SIGN = r"\s*(?:[-+*/\u00d7\u00f7\u2212]|\\times|\\div|\\cdot)\s*"
_TERMS = rf"{_NUMBER}(?:{_SIGN}{_NUMBER})*"
_FRACTION = rf"\\d?frac\{{\s*{_TERMS}\s*\}}\{{\s*{_TERMS}\s*\}}"
_IN_BRACKETS = rf"(?:\\left)?(?<!\\)\(\s*{_TERMS}\s*(?:\\right|(?<!\\))\)"
_FACTOR = rf"(?:{_FRACTION}|{_IN_BRACKETS}|{_NUMBER})"
_EQUATION = re.compile(
    rf"(?<![\w.,])(?P<left>{_FRACTION}|{_FACTOR}(?:{_SIGN}{_FACTOR})++)\s*=\s*(?P<right>{_NUMBER})(?![\d.]*\s*[-+*/\u00d7\u00f7=])"
)
_ANY_FRACTION = re.compile(r"\\d?frac\{([^{}]*)\}\{([^{}]*)\}")
_OPENING = re.compile(r"\\\[|\\\(")
_ENDS = (r"\]", r"\)")
_BOX = re.compile(r"(?:(?:\\\(|\\\[|\$)\s*)?\\boxed\{(?P<inside>[^{}]*(?:\{[^{}]*\}[^{}]*)*)\}(?:\s*(?:\\\)|\\\]|\$))?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Equation:
    """A calculation in a text, with the result that was written."""

    expression: str
    """As the calculator reads it."""
    start: int
    """Where the words before it end."""


def with_calls(task: Task, trajectory: Trajectory) -> dict[str, Any] | None:
    """The `sft.from_episode` of `base.yaml`: a right solution with calls, None when it is wrong or calculates nothing;
    an episode that has calls already as it is."""
    if trajectory.num_tool_calls:
        return solved_episode(task, trajectory)
    if trajectory.stop_reason is not StopReason.DONE or len(trajectory.steps) != 1:
        return None
    words = str(trajectory.steps[0].action.as_message()["content"])
    return demonstration(task.prompt, words, str(task.ground_truth))


def demonstration(prompt: Sequence[Any], solution: str, answer: str) -> dict[str, Any] | None:
    """The conversation in which the calculations of a solution are calls; None when it is wrong or has none."""
    if not number_matches(reward_fn.boxed_number(solution), answer):
        return None
    found = equations(solution)
    while len(found) > MAX_CALLS:  # the shortest stay words
        found.remove(min(found, key=lambda equation: len(equation.expression)))
    if not found:
        return None
    messages, place = [dict(message) for message in prompt], 0
    name = tools.Calculator.name
    for equation in found:
        words = without_boxes(solution[place : equation.start])
        messages.append(prompts.call(words, name, expression=equation.expression))
        messages.append(prompts.result(name, format_number(evaluate(equation.expression))))
        place = equation.start
    last = without_boxes(solution[place:]).partition("####")[0].rstrip()
    messages.append(prompts.answer(last, answer))
    return {
        "messages": messages,
        "tools": [dict(tool.tool_schema) for tool in (tools.Calculator(), tools.check_answer)],
    }


def without_boxes(words: str) -> str:
    r"""Words without boxes and their mark-up.

    >>> without_boxes(r" That is \(\boxed{72}\) clips.")
    'That is 72 clips.'
    """
    return _BOX.sub(lambda match: match["inside"].strip(), words).strip()


def equations(text: str) -> list[Equation]:
    """The calculations of a text that come to what was written, in order.

    >>> [found.expression for found in equations("May: 48 / 2 = 24 clips, 1 + 1 = 3.")]
    ['48 / 2']
    """
    return [found for match in _EQUATION.finditer(text) if (found := _read(text, match)) is not None]


def _read(text: str, match: re.Match[str]) -> Equation | None:
    expression = as_expression(match["left"])
    try:
        value, written = evaluate(expression), evaluate(as_expression(match["right"]))
    except ValueError:
        return None
    if abs(value - written) > max(0.006, 0.001 * abs(value)):
        return None
    opening = _last_opening(text[: match.start()])
    return Equation(expression=expression, start=match.start() if opening is None else opening)


def _last_opening(before: str) -> int | None:
    """Where the formula begins that is open at the end of a text; None when none is."""
    openings = list(_OPENING.finditer(before))
    if not openings or any(mark in before[openings[-1].start() :] for mark in _ENDS):
        return None
    return openings[-1].start()


def as_expression(latex: str) -> str:
    r"""A calculation as the calculator reads it.

    >>> as_expression(r"\frac{48}{2} \times \$1,200.50"), as_expression(r"40 \text{ eggs} - 15\%")
    ('48 / 2 * 1200.50', '40 - (15/100)')
    """
    text = re.sub(r"\\text\{[^{}]*\}|\\left|\\right|\\?\$", "", latex)
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    text = re.sub(r"(\d+(?:\.\d+)?)\s*\\?%", r"(\1/100)", text)
    text = _ANY_FRACTION.sub(lambda match: f"{_bracketed(match[1])} / {_bracketed(match[2])}", text)
    for signs, sign in ((r"\\times|\\cdot|\u00d7", "*"), (r"\\div|\u00f7", "/"), (r"\u2212", "-")):
        text = re.sub(signs, sign, text)
    return " ".join(text.split())


def _bracketed(terms: str) -> str:
    terms = terms.strip()
    return terms if re.fullmatch(r"[\d.]+", terms) else f"({terms})"
