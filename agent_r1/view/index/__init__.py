"""The index of a run's trajectories in SQLite: what is listed, filtered and searched."""

from agent_r1.view.index.database import INDEX_NAME
from agent_r1.view.index.store import IndexState, TrajectoryIndex

__all__ = ["INDEX_NAME", "IndexState", "TrajectoryIndex"]
