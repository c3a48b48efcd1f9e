"""Which tasks are in which batch: an endless, shuffled and resumable sequence."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from agent_r1.seeds import Stream, mix_seed
from agent_r1.types import Group, Task


class TaskSampler:
    """An endless, shuffled, resumable sequence of batches: batch `n` is a function of the seed and `n` alone.

    Every epoch has each task once, in an order of its own; a batch may span two epochs.
    """

    def __init__(self, tasks: Sequence[Task], *, batch_size: int, seed: int) -> None:
        self._tasks = tasks
        self._batch_size = batch_size
        self._seed = seed
        self._orders: dict[int, list[int]] = {}

    def batch(self, number: int) -> list[Task]:
        """Batch `number`, counted from 0."""
        start = number * self._batch_size
        return [self.at(position) for position in range(start, start + self._batch_size)]

    def extra(self, number: int, round_number: int, count: int) -> list[Task]:
        """Further tasks for batch `number`, drawn outside of the epochs' order; also a function of the seed alone."""
        rng = random.Random(mix_seed(self._seed, number, round_number, Stream.EXTRA_TASKS))
        return [self._tasks[rng.randrange(len(self._tasks))] for _ in range(count)]

    def observe(self, groups: Sequence[Group], next_position: int) -> dict[str, float]:
        """Take the results of a batch into account; returns metrics. Here nothing depends on results."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What the sequence depends on besides the seed."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state."""

    def at(self, position: int) -> Task:
        """The task at a position of the sequence, counted from 0: batches of 4 have 4 to 7 in batch 1."""
        epoch, index = divmod(position, len(self._tasks))
        if epoch not in self._orders:
            order = list(range(len(self._tasks)))
            random.Random(mix_seed(self._seed, epoch)).shuffle(order)
            self._orders = {epoch: order}
        return self._tasks[self._orders[epoch][index]]
