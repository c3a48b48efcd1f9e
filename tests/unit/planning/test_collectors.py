"""The simulation takes the groups that the collectors of `agent_r1.rollout` take, in the same time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent_r1.chat import ChatRenderer
from agent_r1.data import TaskSampler
from agent_r1.engines import ScriptedEngine
from agent_r1.planning import Call, EngineRates, RecordedEpisode, RecordedGroup, Setup, UpdateCost, Workload, simulate
from agent_r1.seeds import unit_float
from tests.helpers.fuzzing import cases
from tests.helpers.virtual_clock import in_virtual_time
from tests.unit.rollout.test_overlapping import Pool, ages, numbers, say_the_seed, tasks_named

NAMES = [str(number) for number in range(7)]


def seconds_of(name: str, seed: int) -> float:
    """Of a turn: between one and two, and for some tasks ten more."""
    return 1.0 + unit_float(seed, int(name)) + (10.0 if unit_float(seed, int(name), 1) < 0.2 else 0.0)


class InOrder(Workload):
    """Gives groups in the order of the run instead of drawing them."""

    __slots__ = ("_left",)
    _left: Iterator[RecordedGroup]

    def play(self, groups: list[RecordedGroup]) -> InOrder:
        object.__setattr__(self, "_left", iter(groups))
        return self

    def draw_group(self, size: int, rng: random.Random) -> RecordedGroup:
        return next(self._left)


class Serves(ScriptedEngine):
    """An engine with hardware of its own."""

    pauses_during_update = False


def simulated(seed: int, *, steps: int, staleness: int, groups: int, size: int, slots: int, update: float = 0.0) -> Any:
    sampler = TaskSampler(tasks_named(*NAMES), batch_size=groups, seed=0)

    def group(number: int) -> RecordedGroup:
        turn = Call(
            wait=0.0,
            prompt_tokens=1,
            new_tokens=1,
            action_tokens=1,
            env=seconds_of(sampler.at(number).task_id, seed),
        )
        return (RecordedEpisode(calls=(turn, turn)),) * size

    work = InOrder(
        groups=(),
        rates=EngineRates(per_prompt_token=0.0, base=0.0, per_request=0.0),
        update=UpdateCost(base=update, per_token=0.0),
        trained_share=1.0,
        weight_sync=0.0,
    ).play([group(number) for number in range(steps * groups)])
    setup = Setup(
        groups_per_step=groups, group_size=size, concurrency=slots, max_staleness=staleness, shared=not update
    )
    return simulate(work, setup, steps=steps)


# A slot becomes free, and goes to a group that is due in step 1, a moment before the batch of step 0 is complete.
@example(seed=6, staleness=1, groups=2, size=1, slots=3, update=0.0)
@settings(max_examples=cases(15), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    staleness=st.integers(0, 3),
    groups=st.integers(1, 4),
    size=st.integers(1, 3),
    slots=st.sampled_from([1, 3, 256]),
    update=st.sampled_from([0.0, 0.0, 0.77, 6.66]),
)
def test_the_simulation_trains_the_groups_that_a_run_trains_when_it_trains_them(
    renderer: ChatRenderer, seed: int, staleness: int, groups: int, size: int, slots: int, update: float
) -> None:
    """With updates that take no time on an engine that pauses, and with some that take time on one that does not."""
    steps = 5
    pool = Pool(
        renderer,
        lambda name, said: seconds_of(name, seed),
        max_staleness=staleness,
        tasks=tasks_named(*NAMES),
        groups=groups,
        group_size=size,
        steps=steps,
        concurrency=slots,
        deadline=10_000.0,
    )
    if update:
        pool.engine = pool.rollout.engine = Serves(say_the_seed)
    ends: list[float] = []

    async def run() -> list[list[int]]:
        collected = []
        for step in range(steps):
            collected.append(await pool.collector.collect(step, lambda trajectory: None))
            await asyncio.sleep(update)
            await pool.engine.update_weights([], step + 1)
            assert max(ages(step, collected[-1])) <= staleness
            ends.append(asyncio.get_running_loop().time())
        await pool.collector.close()
        return numbers(collected)

    trained = in_virtual_time(run())
    found = simulated(seed, steps=steps, staleness=staleness, groups=groups, size=size, slots=slots, update=update)
    if staleness:  # otherwise the groups of each batch are numbered from 0
        assert [sorted(step.groups) for step in found.steps] == trained
    totals = [sum(step.total for step in found.steps[: index + 1]) for index in range(steps)]
    assert totals == pytest.approx(ends, rel=1e-6)
