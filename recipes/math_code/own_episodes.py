"""Which of a model's own episodes become demonstrations: those whose last program printed the right answer.

agent-r1 demonstrate recipes/math_code --out runs/math_code_data/own.jsonl model.path=MODEL
agent-r1 train recipes/math_code model.path=MODEL 'sft.data=[runs/math_code_data/own.jsonl]'
"""

from __future__ import annotations

from typing import Any

from agent_r1.data import solved_episode
from agent_r1.types import Task, Trajectory

from .grader import Grader


async def own_episode(task: Task, trajectory: Trajectory) -> dict[str, Any] | None:
    """The `sft.from_episode` of `base.yaml`: a solved episode whose last program printed the answer, by itself or after
    other words."""
    row = solved_episode(task, trajectory)
    if row is None:
        return None
    printed = [str(message["content"]) for message in row["messages"] if message["role"] == "tool"]
    lines = [line for line in printed[-1].splitlines() if line.strip()] if printed else []
    values = [lines[-1].strip(), lines[-1].split()[-1]] if lines else []
    found = [await Grader.here().is_right(str(task.ground_truth), value.strip("[]")) for value in values]
    return row if any(found) else None
