"""`OverlappingCollector`: a step is trained as soon as enough groups are complete, while the others keep running.

As many episodes are alive as a batch has (or `rollout.concurrency`, when that is less). A slot that becomes free goes
to the next group, so the engine stays full while stragglers finish. With two groups per step and a slow group 1:

    step 0: 0 and 1 start, 2 gets the slots of 0, 3 those of 2; 0 and 2 are trained, 1 and 3 keep running
    step 1: under the new weights 4 gets the slots of 3; 1 and 3 are trained, 1 has tokens of both versions

An engine that serves during updates (`pauses_during_update` is false) gets further groups during them too.

A group started in step n has no token older than version n and is due in step n + `max_staleness`. The bound is strict:
a step waits until all groups it leaves behind can still be trained in time, `groups_per_step` per step (`can_wait`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_r1.config import Config
from agent_r1.metric_names import STALENESS_MEAN
from agent_r1.rewards import RewardShaping
from agent_r1.rollout.collector import Collected, Collector
from agent_r1.rollout.runner import Rollout, raise_if_all_failed
from agent_r1.seeds import Stream, mix_seed
from agent_r1.types import Group, Task, Trajectory


@dataclass(slots=True, eq=False, kw_only=True)
class _PendingGroup:
    """A group whose rollouts are running, or complete and not yet trained."""

    number: int
    """Its number among all groups of the run."""
    due: int
    """The last step that may train it."""
    num_unfinished: int
    """Episodes that are running or waiting for a slot."""
    running: asyncio.Task[list[Group]] | None = None
    """Its rollouts."""
    has_spread: bool | None = None
    """None: not computed yet."""

    @property
    def group(self) -> Group | None:
        """The rollouts, once all are finished. Raises what the group's task raised."""
        return self.running.result()[0] if self.running is not None and self.running.done() else None


def can_wait(due: Sequence[int], *, step: int, per_step: int) -> bool:
    """Whether groups due in these steps can all be trained in time by the steps after `step`, `per_step` in each.

    >>> [can_wait(due, step=3, per_step=2) for due in ([4, 4, 5], [4, 4, 4], [3])]
    [True, False, False]
    """
    return all(index // per_step < last - step for index, last in enumerate(sorted(due)))


class OverlappingCollector(Collector):
    """Rolls out a pool of groups; each step takes complete ones. For `max_staleness` above 0."""

    def __init__(self, config: Config, rollout: Rollout, tasks: Sequence[Task], shaping: RewardShaping) -> None:
        super().__init__(config, rollout, tasks, shaping)
        self._num_steps = config.trainer.steps
        self._num_slots = min(config.rollout.concurrency, self.rollouts_per_batch)
        self._slots = asyncio.Semaphore(self._num_slots)
        self._changed = asyncio.Event()
        self._on_finished: Callable[[Trajectory], None] | None = None
        self._updating: int | None = None  # the step that is trained while the engine keeps serving
        self._pending_groups: list[_PendingGroup] = []
        self._pending: list[int] = []
        self._next = 0

    async def collect(self, step: int, on_finished: Callable[[Trajectory], None]) -> Collected:
        """The groups that step `step` trains, those with the earliest due first.

        With `refill_rounds`, groups without spread are added to the batch without counting, up to that many batches of
        them: the step keeps waiting for others.
        """
        self._on_finished, self._updating = on_finished, None
        max_without_spread = self._algorithm.refill_rounds * self._settings.groups_per_step
        without_spread: list[Group] = []
        try:
            while True:
                self._changed.clear()
                without_spread += self._take_without_spread(room=max_without_spread - len(without_spread))
                batch = self._take_batch(step)
                if batch:
                    break
                self._start(step)
                await self._changed.wait()
        finally:
            self._on_finished = None
        groups = sorted([*without_spread, *batch], key=lambda group: group.group_id)
        raise_if_all_failed(groups)
        metrics = self._sampler.observe(groups, self._next)
        if not self._rollout.engine.pauses_during_update:
            self._updating = step
            self._start(step)
        metrics |= self._count(groups) | self._count_stale(groups, step) | self._rollout.take_counts()
        return Collected(groups=tuple(groups), metrics=metrics)

    async def close(self) -> None:
        """Cancel every running group."""
        self._updating = None
        running = [pending.running for pending in self._pending_groups if pending.running is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._pending_groups.clear()

    def state_dict(self, steps_done: int) -> dict[str, Any]:
        """The numbers of the pending groups, and of the first group that was never started."""
        return {
            "pending": sorted([*self._pending, *(pending.number for pending in self._pending_groups)]),
            "next": self._next,
            **self._sampler_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Groups that were pending are rolled out again, with the seeds they had, before any other."""
        super().load_state_dict(state)
        self._pending, self._next = list(state["pending"]), int(state["next"])

    # --- starting --------------------------------------------------------------------------------------------------

    def _start(self, step: int) -> None:
        """Start groups while slots are free, as many as can be trained in time and before the run ends: by this step
        and those after it, or, when its groups are chosen, by those after it alone."""
        per_step = self._settings.groups_per_step
        num_steps = min(1 + self._settings.max_staleness, self._num_steps - step) - (self._updating is not None)
        max_pending = num_steps * per_step
        while len(self._pending_groups) < max_pending:
            num_unfinished = sum(pending.num_unfinished for pending in self._pending_groups)
            if len(self._pending_groups) >= per_step and num_unfinished >= self._num_slots:
                break
            self._start_group(self._next_number(), step)

    def _next_number(self) -> int:
        if self._pending:
            return self._pending.pop(0)
        self._next += 1
        return self._next - 1

    def _start_group(self, number: int, step: int) -> None:
        settings, task = self._settings, self._sampler.at(number)
        pending = _PendingGroup(
            number=number, due=step + settings.max_staleness, num_unfinished=self._num_members(task)
        )

        def note(trajectory: Trajectory) -> None:
            pending.num_unfinished -= 1
            self._changed.set()
            if self._on_finished is not None:
                self._on_finished(trajectory)
            if self._updating is not None:
                self._start(self._updating)

        rolling_out = self._rollout.run(
            [task],
            group_size=settings.group_size,
            sampling=self._sampling,
            seed=mix_seed(self._seed, Stream.ROLLOUT),
            plan=self._plan,
            first_group_id=number,
            may_fail=True,
            slots=self._slots,
            on_finished=note,
        )
        pending.running = asyncio.create_task(rolling_out, name=f"group {number}")
        pending.running.add_done_callback(lambda task: self._changed.set())
        self._pending_groups.append(pending)

    # --- taking ----------------------------------------------------------------------------------------------------

    def _take_without_spread(self, *, room: int) -> list[Group]:
        """Take up to `room` complete groups without spread out of the pool."""
        if not room:
            return []
        complete = self._complete()
        for pending, group in complete:
            if pending.has_spread is None:
                pending.has_spread = self.has_spread(group)
        return self._remove([pending for pending, _ in complete if not pending.has_spread][:room])

    def _take_batch(self, step: int) -> list[Group]:
        """Take the groups of this step out of the pool; none while too few are complete or one that is due is not."""
        per_step = self._settings.groups_per_step
        chosen = [pending for pending, _ in self._complete()][:per_step]
        others = [pending.due for pending in self._pending_groups if pending not in chosen]
        if len(chosen) < per_step or not can_wait(others, step=step, per_step=per_step):
            return []
        return self._remove(chosen)

    def _complete(self) -> list[tuple[_PendingGroup, Group]]:
        """The complete groups, the earliest due first."""
        by_due = sorted(self._pending_groups, key=lambda pending: (pending.due, pending.number))
        return [(pending, group) for pending in by_due if (group := pending.group) is not None]

    def _remove(self, removed: Sequence[_PendingGroup]) -> list[Group]:
        groups = [group for pending in removed if (group := pending.group) is not None]
        self._pending_groups = [pending for pending in self._pending_groups if pending not in removed]
        return groups

    def _count_stale(self, groups: Sequence[Group], step: int) -> dict[str, float]:
        """How many updates old the tokens of a batch are, and how many groups keep running during its update."""
        ages = [
            step - version
            for group in groups
            for trajectory in group.valid
            for recorded in trajectory.steps
            for version in recorded.policy_versions
        ]
        return {
            STALENESS_MEAN: sum(ages) / len(ages) if ages else 0.0,
            "offpolicy/staleness_max": float(max(ages, default=0)),
            "perf/groups_in_flight": float(len(self._pending_groups)),
        }


def make_collector(config: Config, rollout: Rollout, tasks: Sequence[Task], shaping: RewardShaping) -> Collector:
    """A collector of whole batches, or one with overlap when `rollout.max_staleness` is above 0."""
    kind = OverlappingCollector if config.rollout.max_staleness else Collector
    return kind(config, rollout, tasks, shaping)
