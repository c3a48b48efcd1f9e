"""`SharedRollout`: every rank rolls out its share of the groups with its own engine, and all get all of them.

Group n is rolled out by rank n modulo the number of ranks. Seeds depend on the ids of groups and members alone, so the
rollouts are those that one process would have made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

from agent_r1.errors import RolloutsFailingError
from agent_r1.learner.sharded import Ranks
from agent_r1.rollout import Rollout, raise_if_all_failed
from agent_r1.types import Group, Task, Trajectory


def share_rollout(rollout: Rollout, ranks: Ranks, *, only_first: bool = False) -> Rollout:
    """The rollout of a run: shared out over the ranks, or as it is with one. With `only_first` the first rank rolls out
    for all."""
    return rollout if ranks.size == 1 else cast(Rollout, SharedRollout(rollout, ranks, only_first=only_first))


class SharedRollout:
    """In the place of a `Rollout` whose groups several ranks roll out."""

    def __init__(self, rollout: Rollout, ranks: Ranks, *, only_first: bool = False) -> None:
        self.own = rollout
        """This rank's rollout."""
        self._ranks = ranks
        self._num_shares = 1 if only_first else ranks.size

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    async def run(
        self,
        tasks: Sequence[Task],
        *,
        first_group_id: int = 0,
        may_fail: bool = False,
        slots: asyncio.Semaphore | None = None,
        on_finished: Callable[[Trajectory], None] = lambda trajectory: None,
        **settings: Any,
    ) -> list[Group]:
        """The groups of all ranks, in order; see `Rollout.run`. An error of one rank is raised on all."""
        slots = slots or asyncio.Semaphore(self.own.limits.concurrency)
        own_tasks = {
            group_id: task
            for group_id, task in enumerate(tasks, start=first_group_id)
            if group_id % self._num_shares == self._ranks.rank
        }

        async def roll_out(group_id: int, task: Task) -> Group:
            [group] = await self.own.run(
                [task], first_group_id=group_id, may_fail=True, slots=slots, on_finished=on_finished, **settings
            )
            return group

        async def roll_out_share() -> list[Group]:
            return await _run_all([roll_out(group_id, task) for group_id, task in own_tasks.items()])

        shares = await self._ranks.gather(roll_out_share)
        for group in (group for rank, share in enumerate(shares) if rank != self._ranks.rank for group in share):
            for trajectory in group:
                on_finished(trajectory)
        groups = sorted((group for share in shares for group in share), key=lambda group: group.group_id)
        if not may_fail:
            raise_if_all_failed(groups)
        return groups


async def _run_all(rollouts: Sequence[Any]) -> list[Group]:
    """The groups. An error of one cancels the others and is raised by itself."""
    try:
        async with asyncio.TaskGroup() as running:
            tasks = [running.create_task(rollout) for rollout in rollouts]
    except ExceptionGroup as failures:
        failing = failures.subgroup(RolloutsFailingError)
        raise (failures if failing is None else failing).exceptions[0] from None
    return [task.result() for task in tasks]
