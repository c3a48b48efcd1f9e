"""The reward of tau_retail: 1 when the database is as it should be and the customer was told what was asked for."""

from __future__ import annotations

from agent_r1.types import Episode, StopReason, Task


def score(task: Task, episode: Episode) -> dict[str, float]:
    """The result of the episode, which the environment found. An episode that was cut scores 0, whatever it changed."""
    last = episode.steps[-1].info if episode.steps and episode.stop_reason is StopReason.DONE else {}
    database, outputs = float(last.get("database_right", 0.0)), float(last.get("outputs_given", 0.0))
    success = float(database == 1.0 and outputs == 1.0)
    return {"score": success, "success": success, "database": database, "outputs": outputs, "ended": float(bool(last))}
