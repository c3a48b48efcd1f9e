"""A curriculum: tasks are drawn level by level, and the level rises with success.

Rows carry a `difficulty`. A run begins with the tasks of the lowest; when a share of `threshold` of the last `window`
episodes at the level succeeded, the next level begins with the next batch. A share of `review` of the tasks is drawn
from the levels below, so that they are not forgotten.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from agent_r1.data.sampler import TaskSampler
from agent_r1.errors import ConfigError
from agent_r1.seeds import Stream, mix_seed
from agent_r1.types import Group, Task


class Curriculum(TaskSampler):
    """A `TaskSampler` by levels. The task at a position is a function of the seed, the position and `starts`, the
    positions at which levels began; these and the window's results are the whole state.

    With levels of tasks [a b] and [c d], `starts` [0, 4] and no review: a b b a, then c d d c ...
    """

    def __init__(
        self, tasks: Sequence[Task], *, batch_size: int, seed: int, threshold: float, window: int, review: float
    ) -> None:
        super().__init__(tasks, batch_size=batch_size, seed=seed)
        self.levels = levels_of(tasks)
        self._by_level = [[task for task in tasks if task.difficulty == level] for level in self.levels]
        self._threshold, self._window, self._review = threshold, window, review
        self._starts = [0]
        self._results: list[float] = []
        self._orders_of: dict[tuple[int, int], list[int]] = {}

    def at(self, position: int) -> Task:
        """The task at a position: of the level that holds there, or a review of a lower one."""
        level = bisect_right(self._starts, position) - 1
        offset = position - self._starts[level]
        num_reviews = math.floor(offset * self._review) if level else 0
        if level and math.floor((offset + 1) * self._review) > num_reviews:
            return self._any_task(range(level), position)
        return self._in_order(level, offset - num_reviews)

    def extra(self, number: int, round_number: int, count: int) -> list[Task]:
        """Further tasks for batch `number`, of the level that holds there."""
        level = bisect_right(self._starts, number * self._batch_size) - 1
        level_tasks = self._by_level[level]
        rng = random.Random(mix_seed(self._seed, number, round_number, Stream.EXTRA_TASKS))
        return [level_tasks[rng.randrange(len(level_tasks))] for _ in range(count)]

    def observe(self, groups: Sequence[Group], next_position: int) -> dict[str, float]:
        """Take the results of a batch into account; returns metrics. A new level begins at `next_position`, the first
        that no group was started for. Failed rollouts do not count."""
        level = self.levels[len(self._starts) - 1]
        self._results += [
            trajectory.success for group in groups if group.task.difficulty == level for trajectory in group.valid
        ]
        self._results = self._results[-self._window :]
        success = sum(self._results) / len(self._results) if self._results else 0.0
        metrics = {
            "curriculum/level": float(level),
            "curriculum/success": success,
            "curriculum/episodes": float(len(self._results)),
        }
        is_last = len(self._starts) == len(self.levels)
        if not is_last and len(self._results) == self._window and success >= self._threshold:
            self._starts.append(next_position)
            self._results = []
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Where levels began, and the results that the next move depends on."""
        return {"starts": list(self._starts), "results": list(self._results)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state. Levels that the data no longer has are left out."""
        if state:
            self._starts = list(state["starts"])[: len(self.levels)]
            self._results = list(state["results"])[-self._window :]

    def _any_task(self, levels: range, position: int) -> Task:
        rng = random.Random(mix_seed(self._seed, position, Stream.REVIEW))
        below = self._by_level[levels[rng.randrange(len(levels))]]
        return below[rng.randrange(len(below))]

    def _in_order(self, level: int, index: int) -> Task:
        """Every epoch of a level has each of its tasks once, in an order of its own."""
        level_tasks = self._by_level[level]
        epoch, place = divmod(index, len(level_tasks))
        if (level, epoch) not in self._orders_of:
            order = list(range(len(level_tasks)))
            random.Random(mix_seed(self._seed, level, epoch)).shuffle(order)
            self._orders_of = {(level, epoch): order}
        return level_tasks[self._orders_of[level, epoch][place]]


def levels_of(tasks: Sequence[Task]) -> list[int]:
    """The difficulties of all tasks, the lowest first; `ConfigError` when a task has none, or all have the same."""
    without = [task.task_id for task in tasks if task.difficulty is None]
    if without:
        raise ConfigError(
            "data.curriculum.enabled=true needs rows with a column 'difficulty', a whole number from 1: "
            f"{len(without)} of {len(tasks)} training rows have none, such as '{without[0]}'. Give them one, or set "
            "data.curriculum.enabled=false"
        )
    levels = sorted({task.difficulty for task in tasks if task.difficulty is not None})
    if len(levels) < 2:
        raise ConfigError(
            "data.curriculum.enabled=true needs rows of at least two difficulties; all "
            f"{len(tasks)} training rows have {levels[0]}"
        )
    return levels
