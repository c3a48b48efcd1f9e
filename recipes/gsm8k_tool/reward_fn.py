"""The outcome reward of gsm8k_tool: 1 for the right number, as in gsm8k.

Only an answer counts: the last action of an episode that ran out of steps calls a tool, and a number in a call is not
an answer. Where the tool format has a mark of its own for the answer (`Final Answer: 42`), the number alone will do.
"""

from __future__ import annotations

from agent_r1.rewards import last_number, marked_number
from agent_r1.types import Episode, Task


def score(task: Task, episode: Episode) -> dict[str, float | str]:
    """1 when the answer ends with `####` and the right number; `flexible` says whether its last number is right."""
    text = episode.answer
    strict = marked_number(text)
    if strict is None and text and episode.steps[-1].action.final_answer is not None:
        strict = marked_number(f"#### {text}")
    return {
        "score": _is_right(strict, task),
        "flexible": _is_right(last_number(text), task),
        "answer": "" if strict is None else f"{strict:.12g}",
    }


def gold_answer(task: Task) -> str:
    """A perfect last action, for `agent-r1 check`."""
    return f"#### {task.ground_truth}"


def _is_right(number: float | None, task: Task) -> float:
    return float(number is not None and number == float(task.ground_truth))
