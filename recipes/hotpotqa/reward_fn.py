"""The outcome reward of hotpotqa: the answer in `<answer>` tags against the accepted ones."""

from __future__ import annotations

import re

from agent_r1.rewards import accepted_answers, exact_match, f1_score, needs_ground_truth, normalise_text
from agent_r1.types import Episode, Task

PARTIAL, FORMAT = 0.6, 0.1
"""What an answer earns that is not right: its F1 times the first, and the second when it has the form of an answer.
Together less than 1, so that only a right answer has full marks."""

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def find_answer(text: str) -> str | None:
    """What stands in the only pair of tags, or None: whoever gives several answers gives none.

    >>> find_answer("It says so. <answer> Jack Owens </answer>")
    'Jack Owens'
    """
    found = _ANSWER.findall(text)
    return found[0].strip() if len(found) == 1 else None


def has_form(text: str) -> bool:
    """Whether a text ends with its only answer.

    >>> has_form("So <answer>no</answer>"), has_form("<answer>no</answer> <answer>yes</answer>")
    (True, False)
    """
    once = text.count("<answer>") == text.count("</answer>") == 1
    return once and bool(find_answer(text)) and text.rstrip().endswith("</answer>")


@needs_ground_truth("text")
def score(task: Task, episode: Episode) -> dict[str, float | str]:
    """1 for an answer that is right up to case, punctuation and articles; a share of that for one that comes near."""
    answer = find_answer(episode.answer) or ""
    accepted = accepted_answers(task.ground_truth)
    em, f1 = exact_match(answer, accepted), f1_score(answer, accepted)
    form = float(has_form(episode.answer))
    return {
        "score": 1.0 if em else PARTIAL * f1 + FORMAT * form,
        "success": float(em),
        "em": float(em),
        "f1": f1,
        "format": form,
        "answer": normalise_text(answer),
    }


def gold_answer(task: Task) -> str:
    """The text of a perfect last action."""
    return f"<answer>{accepted_answers(task.ground_truth)[0]}</answer>"
