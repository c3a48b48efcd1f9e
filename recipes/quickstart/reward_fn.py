"""The quickstart's outcome reward: 1 for the right total."""

from __future__ import annotations

from agent_r1.rewards import needs_ground_truth, same_text
from agent_r1.types import Episode, Task


@needs_ground_truth("exact")
def score(task: Task, episode: Episode) -> dict[str, float | str]:
    """1 when the answer is just the right number."""
    answer = episode.answer.strip()
    return {"score": float(same_text(answer, task.ground_truth)), "answer": answer}
