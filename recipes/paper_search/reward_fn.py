"""The reward of paper_search: F1 of the papers in the answer. The steps are rewarded for what they find."""

from __future__ import annotations

import re
from collections.abc import Collection

from agent_r1.types import Episode, Task

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def chosen_numbers(text: str) -> list[int]:
    """The numbers in the only pair of tags, each once; none when there are several pairs.

    >>> chosen_numbers("<answer>1, 4, 4</answer>"), chosen_numbers("<answer>1</answer> <answer>2</answer>")
    ([1, 4], [])
    """
    found = _ANSWER.findall(text)
    if len(found) != 1:
        return []
    return list(dict.fromkeys(int(number) for number in re.findall(r"(?<!\d)\d{1,6}(?!\d)", found[0])))


def score(task: Task, episode: Episode) -> dict[str, float | str]:
    """F1 of the answer. `recall`, which counts as success, is of all papers that were read.

    The numbers of an answer are those under which papers were shown; numbers that were not shown are wrong papers.
    Without an episode (`agent-r1 check`) they are numbers of the collection, and success is F1.
    """
    relevant = frozenset(task.ground_truth)
    read = episode.steps[-1].info.get("read") if episode.steps else None
    numbers = chosen_numbers(episode.answer)
    if read is None:
        chosen = numbers
    else:
        chosen = [read[number - 1] if 1 <= number <= len(read) else -number - 1 for number in numbers]
    precision, recall_of_answer, f1 = overlap(chosen, relevant)
    recall = recall_of_answer if read is None else overlap(read, relevant)[1]
    return {
        "score": f1,
        "success": f1 if read is None else recall,
        "recall": recall,
        "precision": precision,
        "answer_recall": recall_of_answer,
        "f1": f1,
        "read": float(len(read or ())),
        "answered": float(bool(numbers)),
        "answer": " ".join(map(str, sorted(chosen))),
    }


def overlap(chosen: Collection[int], relevant: Collection[int]) -> tuple[float, float, float]:
    """Precision, recall and F1 of some papers.

    >>> overlap([1, 2, 3, 4], [1, 9])
    (0.25, 0.5, 0.3333333333333333)
    """
    hits = len(set(chosen) & set(relevant))
    if not hits:
        return 0.0, 0.0, 0.0
    precision, recall = hits / len(set(chosen)), hits / len(set(relevant))
    return precision, recall, 2 * precision * recall / (precision + recall)


def gold_answer(task: Task) -> str:
    """The text of a perfect last action, by the numbers of the collection."""
    return f"<answer>{', '.join(map(str, task.ground_truth))}</answer>"
