"""The outcome reward of zoom: 1 for the right digit."""

from __future__ import annotations

from agent_r1.rewards import needs_ground_truth, same_text
from agent_r1.types import Episode, Task

from .board import given_digit


@needs_ground_truth("exact")
def score(task: Task, episode: Episode) -> dict[str, float | str]:
    """1 when the episode ended with the right digit."""
    digit = given_digit(episode.steps[-1].action) if episode.steps else None
    said = "" if digit is None else str(digit)
    return {"score": float(same_text(said, task.ground_truth)), "answer": said}


def gold_answer(task: Task) -> str:
    """A perfect last action, for `agent-r1 check`."""
    return f'<tool_call>{{"name": "answer", "arguments": {{"digit": {task.ground_truth}}}}}</tool_call>'
