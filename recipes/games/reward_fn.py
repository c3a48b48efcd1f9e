"""The outcome reward of TextCraft: 1 when the goal was crafted, which ends the episode; otherwise 0."""

from __future__ import annotations

from agent_r1.types import Episode, StopReason, Task


def score(task: Task, episode: Episode) -> dict[str, float]:
    """Whether the goal was reached."""
    last = episode.steps[-1].info if episode.steps and episode.stop_reason is StopReason.DONE else {}
    reached = float("crafted" in last)
    return {"score": reached, "success": reached}
