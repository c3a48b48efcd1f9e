"""The score of bfcl: 1 when the calls are exactly those that the row accepts, otherwise 0."""

from __future__ import annotations

from agent_r1.errors import DataError
from agent_r1.types import Episode, StopReason, Task

from .env import row_functions
from .matching import calls_match


def score(task: Task, episode: Episode) -> dict[str, float]:
    """Whether the calls are right; a turn that was cut, or is no well-formed call, is wrong even where none is due."""
    truth = task.ground_truth
    if not isinstance(truth, list):
        raise DataError(f"task '{task.task_id}' needs reward_model.ground_truth, a list of calls (empty: none)")
    is_whole = bool(episode.steps) and episode.stop_reason is StopReason.DONE
    action = episode.steps[-1].action if is_whole else None
    if action is None or action.parse_error is not None:
        return {"score": 0.0, "success": 0.0, "well_formed": 0.0}
    calls = [(call.name, call.arguments) for call in action.tool_calls]
    right = float(calls_match(calls, truth, row_functions(task)))
    return {"score": right, "success": right, "well_formed": 1.0}
