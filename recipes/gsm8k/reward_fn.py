"""The outcome reward of gsm8k: 1 for the right number.

`score` is strict: the text must end with `#### n`. `score_flexible` (`reward.function=reward_fn:score_flexible`) takes
the last number wherever it stands. Each reports the other's verdict as a part, and numbers are compared as numbers:
1,000 and 1000.0 are the same.
"""

from __future__ import annotations

from agent_r1.rewards import find_last_number, find_marked_number, needs_ground_truth, number_matches, number_text
from agent_r1.types import Episode, Task


@needs_ground_truth("number")
def score(task: Task, episode: Episode) -> dict[str, float | str]:
    """1 when the text ends with `####` and the right number; `flexible` says whether the last number is right."""
    strict, flexible = find_marked_number(episode.answer), find_last_number(episode.answer)
    return {
        "score": float(number_matches(strict, task.ground_truth)),
        "flexible": float(number_matches(flexible, task.ground_truth)),
        "answer": "" if strict is None else number_text(strict),
    }


@needs_ground_truth("number")
def score_flexible(task: Task, episode: Episode) -> dict[str, float | str]:
    """1 when the last number is the right one; `strict` says whether the text also ends with it after `####`."""
    strict, flexible = find_marked_number(episode.answer), find_last_number(episode.answer)
    return {
        "score": float(number_matches(flexible, task.ground_truth)),
        "strict": float(number_matches(strict, task.ground_truth)),
        "answer": "" if flexible is None else number_text(flexible),
    }


def gold_answer(task: Task) -> str:
    """A perfect last action, for `agent-r1 check`."""
    return f"#### {task.ground_truth}"
