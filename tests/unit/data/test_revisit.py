"""Tasks of medium success are drawn again: which join the pool, where they stand, and that a resume is exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from agent_r1.config import Config
from agent_r1.config.data_schema import CurriculumConfig, DataConfig, RevisitConfig
from agent_r1.data import RevisitingSampler, TaskSampler
from agent_r1.errors import ConfigError
from agent_r1.rollout import make_sampler
from agent_r1.types import Group, StopReason, Task, Trajectory

TASKS = [Task(task_id=str(number), prompt=()) for number in range(10)]


def sampler(*, share: float = 0.5, low: float = 0.1, high: float = 0.9) -> RevisitingSampler:
    return RevisitingSampler(TASKS, batch_size=4, seed=3, share=share, low=low, high=high)


def group(name: str, *successes: float, stop_reason: StopReason = StopReason.DONE) -> Group:
    made = [
        Trajectory(task_id=name, group_id=0, member=index, steps=(), outcome_reward=value, stop_reason=stop_reason)
        for index, value in enumerate(successes)
    ]
    return Group(task=Task(task_id=name, prompt=()), group_id=0, trajectories=tuple(made))


def run(drawn_from: TaskSampler, num_steps: int, *, first: int = 0, medium: Callable[[str], bool]) -> list[list[str]]:
    """The ids of the tasks of each batch, when the tasks of medium success are solved by one rollout of two."""
    batches = []
    for step in range(first, first + num_steps):
        batches.append([task.task_id for task in drawn_from.batch(step)])
        groups = [group(name, 1.0, 0.0 if medium(name) else 1.0) for name in batches[-1]]
        drawn_from.observe(groups, (step + 1) * 4)
    return batches


def names(drawn_from: TaskSampler, count: int, first: int = 0) -> list[str]:
    return [drawn_from.at(position).task_id for position in range(first, first + count)]


def test_without_tasks_of_medium_success_the_order_is_the_usual_one() -> None:
    usual = TaskSampler(TASKS, batch_size=4, seed=3)
    assert run(sampler(), 6, medium=lambda name: False) == run(usual, 6, medium=lambda name: False)


def test_a_share_of_the_tasks_comes_from_the_pool_and_the_others_keep_their_order() -> None:
    usual, own = TaskSampler(TASKS, batch_size=4, seed=3), sampler(share=0.25)
    first = names(usual, 4)
    assert names(own, 4) == first
    own.observe([group(first[0], 1.0, 0.0), group(first[1], 1.0, 1.0), group(first[2], 0.0, 1.0)], 4)
    later = names(own, 16, first=4)
    again = later[3::4]  # every fourth
    assert Counter(again) == {first[0]: 2, first[2]: 2}
    assert set(again[:2]) == set(again[2:]) == {first[0], first[2]}
    assert [name for place, name in enumerate(later) if place % 4 != 3] == names(usual, 12, first=4)


@pytest.mark.parametrize(
    ("successes", "belongs"),
    [
        ([1, 0, 0, 0, 0, 0, 0, 0, 0, 0], True),  # both bounds are included
        ([1, 1, 1, 1, 1, 1, 1, 1, 1, 0], True),
        ([1] + [0] * 10, False),
        ([0, 0], False),
        ([1, 1], False),
    ],
)
def test_success_between_the_bounds_belongs_to_the_pool(successes: list[float], belongs: bool) -> None:
    assert sampler().observe([group("4", *successes)], 4) == {"revisit/tasks": float(belongs)}


def test_a_task_that_is_solved_by_all_leaves_and_one_whose_rollouts_failed_stays() -> None:
    own = sampler(share=1.0)
    own.observe([group("4", 1.0, 0.0), group("7", 1.0, 0.0)], 4)
    assert Counter(names(own, 4, first=4)) == {"4": 2, "7": 2}
    assert own.observe([group("4", 1.0, 1.0), group("7", 0.0, stop_reason=StopReason.ENV_ERROR)], 8) == {
        "revisit/tasks": 1.0
    }
    assert names(own, 4, first=8) == ["7"] * 4


def test_an_empty_pool_gives_tasks_of_all() -> None:
    own = sampler(share=1.0)
    own.observe([group("4", 1.0, 0.0)], 0)
    own.observe([group("4", 1.0, 1.0)], 4)
    assert len(set(names(own, 40, first=4))) > 5


def test_a_position_keeps_its_task_when_the_pool_changes_after_it_was_started() -> None:
    own = sampler(share=1.0)
    own.observe([group("4", 1.0, 0.0)], 2)
    before = names(own, 10)
    own.observe([group("5", 1.0, 0.0), group("4", 1.0, 1.0)], 10)
    assert names(own, 10) == before
    assert own.at(10).task_id == "5"


@pytest.mark.parametrize("stop", [1, 2, 5])
def test_a_resumed_run_draws_what_the_uninterrupted_one_draws(stop: int) -> None:
    def medium(name: str) -> bool:
        return name in "259"

    whole = run(sampler(), 9, medium=medium)
    interrupted, resumed = sampler(), sampler()
    begun = run(interrupted, stop, medium=medium)
    resumed.load_state_dict(interrupted.state_dict())
    assert begun + run(resumed, 9 - stop, first=stop, medium=medium) == whole
    assert [name for batch in whole for name in batch].count("2") > 4


def test_keys_that_contradict_each_other_are_refused() -> None:
    def config(**data: object) -> Config:
        return Config(data=DataConfig(**data))

    again = RevisitConfig(share=0.5)
    assert isinstance(make_sampler(config(revisit=again), TASKS), RevisitingSampler)
    assert type(make_sampler(config(), TASKS)) is TaskSampler
    with pytest.raises(ConfigError, match=r"data.revisit.low=0.9 is above data.revisit.high=0.1"):
        make_sampler(config(revisit=RevisitConfig(share=0.5, low=0.9, high=0.1)), TASKS)
    with pytest.raises(ConfigError, match=r"both choose the tasks; leave one out"):
        make_sampler(config(curriculum=CurriculumConfig(enabled=True), revisit=again), TASKS)
