"""The outcome reward of nlvr: 1 when the last word of the answer is the label."""

from __future__ import annotations

from agent_r1.rewards import needs_ground_truth, same_text
from agent_r1.types import Episode, Task

LABELS = ("true", "false")


@needs_ground_truth("exact")
def score(task: Task, episode: Episode) -> dict[str, float | str]:
    """1 when the episode ended with the right word."""
    said = last_word(episode.answer)
    return {"score": float(same_text(said, task.ground_truth)), "answer": said}


def last_word(text: str) -> str:
    """The label that a text ends with, empty when it ends with anything else.

    >>> last_word("tower blue = 1 | 0 0 1 | True."), last_word("true or not")
    ('true', '')
    """
    words = text.split()
    word = words[-1].strip(".").lower() if words else ""
    return word if word in LABELS else ""


def gold_answer(task: Task) -> str:
    """A perfect last action, for `agent-r1 check`."""
    return str(task.ground_truth)
