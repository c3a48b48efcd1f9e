"""The outcome reward of my_task: 1 for the right colour."""

from __future__ import annotations

from agent_r1.types import Episode, Task


def score(task: Task, episode: Episode) -> dict[str, float | str]:
    """1 when the last action is the right answer and nothing else."""
    answer = episode.final_text.strip()
    return {"score": float(answer == task.ground_truth), "answer": answer}
