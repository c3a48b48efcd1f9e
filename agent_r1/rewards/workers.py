"""Reward functions in worker processes, so that one that hangs can be killed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Protocol

from agent_r1.rewards.outcome import RewardFunction, RewardValue, Score
from agent_r1.rewards.weighted import RewardSum
from agent_r1.types import Episode, Task


class Workers(Protocol):
    """Runs functions in other processes; `agent_r1.tools.workers.pool.WorkerPool` is one."""

    async def call(self, function: Callable[..., Any], *args: Any, timeout: float) -> Any:
        """What `function(*args)` returns; raises when it raises, dies or takes longer than `timeout` seconds."""
        ...


def in_workers(function: RewardFunction, workers: Workers, *, timeout: float) -> RewardFunction:
    """The reward function, run by `workers`. One that takes longer than `timeout` seconds is killed and fails the
    rollout; it is never 0. Each function of a sum has the whole time."""
    if isinstance(function, RewardSum):
        return function.with_functions(lambda term: in_workers(term, workers, timeout=timeout))

    @functools.wraps(function)  # keeps `needs_ground_truth`
    async def score(task: Task, episode: Episode) -> RewardValue:
        value: Any = await workers.call(function, task, episode, timeout=timeout)
        returned: RewardValue = Score(**value) if _is_score(value) else value
        return returned

    return score


def _is_score(value: Any) -> bool:
    """Whether it is a `Score` as workers send it: a mapping with its fields."""
    return isinstance(value, Mapping) and value.keys() == {field.name for field in fields(Score)}
