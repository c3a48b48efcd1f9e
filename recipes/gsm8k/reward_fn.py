"""The outcome reward of gsm8k: 1 for the right number.

`score` is strict: the text must end with `#### n`. `score_flexible` (`reward.function=reward_fn:score_flexible`) takes
the last number wherever it stands. Each reports the other's verdict as a part, and numbers are compared as numbers:
1,000 and 1000.0 are the same.
"""

from __future__ import annotations

from agent_r1.rewards import last_number, marked_number
from agent_r1.types import Episode, Task


def score(task: Task, episode: Episode) -> dict[str, float | str]:
    """1 when the text ends with `####` and the right number; `flexible` says whether the last number is right."""
    strict, flexible = marked_number(episode.answer), last_number(episode.answer)
    return {
        "score": _is_right(strict, task),
        "flexible": _is_right(flexible, task),
        "answer": _as_text(strict),
    }


def score_flexible(task: Task, episode: Episode) -> dict[str, float | str]:
    """1 when the last number is the right one; `strict` says whether the text also ends with it after `####`."""
    strict, flexible = marked_number(episode.answer), last_number(episode.answer)
    return {
        "score": _is_right(flexible, task),
        "strict": _is_right(strict, task),
        "answer": _as_text(flexible),
    }


def gold_answer(task: Task) -> str:
    """A perfect last action, for `agent-r1 check`."""
    return f"#### {task.ground_truth}"


def _is_right(number: float | None, task: Task) -> float:
    return float(number is not None and number == float(task.ground_truth))


def _as_text(number: float | None) -> str:
    """One form of each number, so that a majority vote does not count 5 and 5.0 apart."""
    return "" if number is None else f"{number:.12g}"
