"""The outcome reward of gsm8k_tool: 1 for the right number, as in gsm8k.

Only an answer counts: the last action of an episode that ran out of steps calls a tool, and a number in a call is not
an answer. Where the tool format has a mark of its own for the answer (`Final Answer: 42`), the number alone will do.
"""

from __future__ import annotations

import re
from fractions import Fraction

from agent_r1.rewards import find_last_number, find_marked_number, needs_ground_truth, number_matches, number_text
from agent_r1.types import Episode, Task

_BOX = re.compile(r"\\boxed\{(?P<inside>[^{}]*(?:\{[^{}]*\}[^{}]*)*)\}")


@needs_ground_truth("number")
def score(task: Task, episode: Episode) -> dict[str, float | str]:
    """1 when the answer ends with `####` and the right number; `flexible` says whether its last number is right."""
    text = episode.answer
    strict = find_marked_number(text)
    if strict is None and text and episode.steps[-1].action.final_answer is not None:
        strict = find_marked_number(f"#### {text}")
    return {
        "score": float(number_matches(strict, task.ground_truth)),
        "flexible": float(number_matches(find_last_number(text), task.ground_truth)),
        "answer": "" if strict is None else number_text(strict),
    }


@needs_ground_truth("number")
def score_boxed(task: Task, episode: Episode) -> dict[str, float | str]:
    r"""1 when the last `\boxed{}` has the right number: for episodes without tools (`env=gsm8k_plain`)."""
    found = boxed_number(episode.answer)
    return {
        "score": float(number_matches(found, task.ground_truth)),
        "flexible": float(number_matches(find_last_number(episode.answer), task.ground_truth)),
        "answer": "" if found is None else number_text(found),
    }


def boxed_number(text: str) -> Fraction | None:
    r"""The number in the last box of a text.

    >>> boxed_number(r"That is \boxed{\$1,200} in 2 days.")
    Fraction(1200, 1)
    """
    boxes = _BOX.findall(text)
    return find_last_number(boxes[-1]) if boxes else None


def gold_answer(task: Task) -> str:
    """A perfect last action, for `agent-r1 check`."""
    return f"#### {task.ground_truth}"
