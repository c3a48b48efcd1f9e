"""Tasks that are solved now and then are drawn again.

A group in which all rollouts fail, or all succeed, teaches nothing. After each batch the tasks whose success was
between `low` and `high` join a pool, and those outside of it leave; from then on a `share` of the positions is drawn
from the pool, and the others keep the usual order.
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


class RevisitingSampler(TaskSampler):
    """A `TaskSampler` that returns to tasks of medium success. The task at a position is a function of the seed, the
    position and the changes of the pool up to it; these changes are the whole state.

    With tasks a b c d in this order, a `share` of 1/2, and a the only task solved now and then: a b | c a d a ...
    """

    def __init__(
        self, tasks: Sequence[Task], *, batch_size: int, seed: int, share: float, low: float, high: float
    ) -> None:
        if low > high:
            raise ConfigError(
                f"data.revisit.low={low:g} is above data.revisit.high={high:g}: no task is between them. Lower it"
            )
        super().__init__(tasks, batch_size=batch_size, seed=seed)
        self._share, self._low, self._high = share, low, high
        self._index_of = {task.task_id: index for index, task in reversed(list(enumerate(tasks)))}
        self._changes: list[tuple[int, int, bool]] = []
        self._pool: set[int] = set()

    def at(self, position: int) -> Task:
        """The task at a position: of the pool that holds there, or the next of the usual order."""
        start = self._changes[0][0] if self._changes else position + 1
        if position < start:
            return super().at(position)
        offset = position - start
        num_revisits = math.floor(offset * self._share)
        if math.floor((offset + 1) * self._share) == num_revisits:
            return super().at(position - num_revisits)
        since, pool = self._pool_at(position)
        if not pool:  # all of its tasks have left it
            rng = random.Random(mix_seed(self._seed, position, Stream.REVISIT))
            return self._tasks[rng.randrange(len(self._tasks))]
        epoch, place = divmod(num_revisits - math.floor((since - start) * self._share), len(pool))
        random.Random(mix_seed(self._seed, since, epoch, Stream.REVISIT)).shuffle(pool)
        return self._tasks[pool[place]]

    def observe(self, groups: Sequence[Group], next_position: int) -> dict[str, float]:
        """Take the results of a batch into account; returns metrics. The pool changes at `next_position`, the first
        that no group was started for. Failed rollouts do not count."""
        for group in groups:
            index = self._index_of.get(group.task.task_id)
            results = [trajectory.success for trajectory in group.valid]
            if index is None or not results:
                continue
            belongs = self._low <= sum(results) / len(results) <= self._high
            if belongs != (index in self._pool):
                self._changes.append((next_position, index, belongs))
                self._pool ^= {index}
        return {"revisit/tasks": float(len(self._pool))}

    def state_dict(self) -> dict[str, Any]:
        """Which task joined or left the pool, and from which position on."""
        return {"changes": [list(change) for change in self._changes]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state. Tasks that the data no longer has are left out."""
        saved = [(int(position), int(index), bool(joined)) for position, index, joined in state.get("changes", [])]
        self._changes = [change for change in saved if change[1] < len(self._tasks)]
        self._pool = _members(self._changes)

    def _pool_at(self, position: int) -> tuple[int, list[int]]:
        """The position since which the pool is what it is at a position, and its tasks."""
        index = bisect_right(self._changes, position, key=lambda change: change[0])
        is_latest = index == len(self._changes)  # otherwise a group that was started before the latest changes
        return self._changes[index - 1][0], sorted(self._pool if is_latest else _members(self._changes[:index]))


def _members(changes: Sequence[tuple[int, int, bool]]) -> set[int]:
    pool: set[int] = set()
    for _, index, joined in changes:
        (pool.add if joined else pool.discard)(index)
    return pool
