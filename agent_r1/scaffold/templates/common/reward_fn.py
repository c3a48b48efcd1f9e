"""The outcome reward of my_task: 1 for the right colour."""

from __future__ import annotations

from agent_r1.rewards import needs_ground_truth, same_text
from agent_r1.types import Episode, Task


@needs_ground_truth("exact")
def score(task: Task, episode: Episode) -> dict[str, float | str]:
    """1 when the answer is the right colour and nothing else; an episode that was cut has no answer."""
    answer = episode.answer.strip()
    return {"score": float(same_text(answer, task.ground_truth)), "answer": answer}
