"""Outcome rewards: one number for a whole episode, given once, at its end.

    def score(task: Task, episode: Episode) -> float:
        return float(task.ground_truth in episode.final_text)

A reward function may be async, and may return a mapping instead of a number: `score` is the reward, `answer` (text) is
what majority votes count, every other entry is logged as `reward/<name>`; `success` (0 or 1) says what counts as solved
when that is not a reward of 1.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_r1.errors import boundary
from agent_r1.registry import Registry
from agent_r1.rewards.matching import last_number, normalise_text
from agent_r1.types import Episode, StopReason, Task

RewardValue = float | Mapping[str, Any]
RewardFunction = Callable[[Task, Episode], RewardValue | Awaitable[RewardValue]]

reward_functions: Registry[RewardFunction] = Registry("reward function")


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """What a reward function said."""

    value: float
    """The outcome reward."""
    answer: str
    """What a majority vote counts."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Everything else it reported."""


async def score_episode(function: RewardFunction, task: Task, episode: Episode) -> Score:
    """Score one episode; a reward that raises or is not a finite number fails the rollout, it is never 0.

    `lambda task, episode: {"score": 0.5, "answer": "12", "format": 1}` gives Score(value=0.5, answer="12",
    parts={"format": 1.0}).
    """
    with boundary(StopReason.REWARD_ERROR, f"the reward function on task '{task.task_id}'"):
        returned: Any = function(task, episode)
        if inspect.isawaitable(returned):
            returned = await returned
        parts = dict(returned) if isinstance(returned, Mapping) else {"score": returned}
        if "score" not in parts:
            raise ValueError(f"a reward mapping needs the key 'score', found {sorted(parts)}")
        answer = str(parts.pop("answer", episode.final_text))
        numbers = {name: _finite(name, value) for name, value in parts.items()}
        return Score(value=numbers.pop("score"), answer=answer, parts=numbers)


def _finite(name: str, value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"the reward's '{name}' is {number}; rewards must be finite")
    return number


@reward_functions.register("none")
def no_outcome_reward(task: Task, episode: Episode) -> float:
    """0: all reward comes from the environment's steps."""
    return 0.0


@reward_functions.register("exact_match")
def exact_match(task: Task, episode: Episode) -> float:
    """1 when the final text equals the ground truth, up to case, punctuation, articles and spaces."""
    return float(normalise_text(episode.final_text) == normalise_text(str(task.ground_truth)))


@reward_functions.register("last_number")
def last_number_matches(task: Task, episode: Episode) -> RewardValue:
    """1 when the last number of the final text equals the ground truth."""
    found, wanted = last_number(episode.final_text), last_number(str(task.ground_truth))
    return {"score": float(found is not None and found == wanted), "answer": "" if found is None else str(found)}
