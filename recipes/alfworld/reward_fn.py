"""The outcome reward of alfworld: 1 when the task is done, else 0."""

from __future__ import annotations

from agent_r1.types import Episode, Task

from .world.goals import SHORT


def score(task: Task, episode: Episode) -> dict[str, float]:
    """1 for a game that was won; also as the part of its family (`pick`, `look`, `clean`, `heat`, `cool`, `two`)."""
    won = float(bool(episode.steps) and episode.steps[-1].info.get("won") is True)
    return {"score": won, "success": won, SHORT[task.env_kwargs["goal"]["family"]]: won}
