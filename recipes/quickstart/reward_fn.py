"""The quickstart's outcome reward: 1 for the right total."""

from __future__ import annotations

from agent_r1.types import Episode, Task


def score(task: Task, episode: Episode) -> dict[str, float | str]:
    """1 when the last action is just the right number."""
    answer = episode.final_text.strip()
    return {"score": float(answer == task.ground_truth), "answer": answer}
