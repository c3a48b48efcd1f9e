"""The outcome reward of geometry3k: 1 for the right number or choice in the last \\boxed{}."""

from __future__ import annotations

from agent_r1.rewards import needs_ground_truth
from agent_r1.types import Episode, Task

from .latex import boxed, same_answer


@needs_ground_truth("exact")
def score(task: Task, episode: Episode) -> dict[str, float | str]:
    """1 when what is boxed last has the value of the ground truth; `boxed` says whether anything is boxed."""
    given = boxed(episode.answer)
    return {
        "score": float(given is not None and same_answer(given, str(task.ground_truth))),
        "boxed": float(given is not None),
        "answer": given or "",
    }


def gold_answer(task: Task) -> str:
    """A perfect last action, for `agent-r1 check`."""
    return f"\\boxed{{{task.ground_truth}}}"
