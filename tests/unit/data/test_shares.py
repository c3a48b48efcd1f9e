"""Data sources in fixed shares: what a stretch has, epochs of each source, and shares that do not fit."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_r1.config import Config, load_config
from agent_r1.config.data_schema import CurriculumConfig, DataConfig
from agent_r1.data import MixingSampler, TaskSampler
from agent_r1.errors import ConfigError
from agent_r1.rollout import make_sampler
from agent_r1.types import Task

SIZES = {"a": 30, "b": 3, "c": 5}
TASKS = [Task(task_id=f"{name}{n}", prompt=(), data_source=name) for name, size in SIZES.items() for n in range(size)]


def mixed(**shares: float) -> MixingSampler:
    return MixingSampler(TASKS, batch_size=4, seed=3, shares=shares)


def names(drawn_from: TaskSampler, count: int) -> list[str]:
    return [drawn_from.at(position).task_id for position in range(count)]


def test_three_to_one_takes_turns() -> None:
    assert [name[0] for name in names(mixed(a=3, b=1, c=0), 8)] == ["a", "a", "b", "a", "a", "a", "b", "a"]


@given(st.tuples(*[st.floats(0.01, 10)] * 3), st.integers(0, 300), st.integers(1, 60))
def test_every_stretch_has_the_shares(weights: tuple[float, float, float], first: int, length: int) -> None:
    sampler = mixed(**dict(zip("abc", weights, strict=True)))
    found = Counter(sampler.at(position).data_source for position in range(first, first + length))
    for name, weight in zip("abc", weights, strict=True):
        assert abs(found[name] - length * weight / sum(weights)) < len(weights)


def test_each_source_has_epochs_of_its_own() -> None:
    drawn = names(mixed(a=1, b=1, c=0), 60)
    of_a, of_b = [name for name in drawn if name[0] == "a"], [name for name in drawn if name[0] == "b"]
    assert len(set(of_a)) == len(of_a) == 30
    assert [sorted(of_b[start : start + 3]) for start in range(0, 30, 3)] == [["b0", "b1", "b2"]] * 10
    assert len({tuple(of_b[start : start + 3]) for start in range(0, 30, 3)}) > 1


def test_a_position_has_the_same_task_whatever_was_asked_before() -> None:
    first, other = mixed(a=1, b=2, c=1), mixed(a=1, b=2, c=1)
    other.at(40)
    assert [task.task_id for task in other.batch(5)] == [task.task_id for task in first.batch(5)]
    assert [task.task_id for task in other.extra(5, 1, 8)] == [task.task_id for task in first.extra(5, 1, 8)]


def test_further_tasks_of_a_batch_have_the_shares_too() -> None:
    assert Counter(task.data_source for task in mixed(a=1, b=3, c=0).extra(2, 1, 16)) == {"a": 4, "b": 12}


@pytest.mark.parametrize(
    ("shares", "says"),
    [
        ({"a": 1, "b": 1}, r"says nothing about c; .* a \(30 rows\), b \(3 rows\), c \(5 rows\)\. Name every"),
        ({"a": 1, "b": 1, "c": 1, "d": 1}, r"names d, which no training row has"),
        ({"a": 0, "b": 0, "c": 0}, r"0 for every data source"),
    ],
)
def test_shares_that_do_not_fit_the_rows_are_refused(shares: dict[str, float], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_sampler(Config(data=DataConfig(shares=shares)), TASKS)


def test_a_run_has_shares_or_a_curriculum() -> None:
    data = DataConfig(shares={"a": 1}, curriculum=CurriculumConfig(enabled=True))
    with pytest.raises(ConfigError, match=r"data\.curriculum\.enabled=true and data\.shares both choose the tasks"):
        make_sampler(Config(data=data), TASKS)


def test_shares_are_written_on_the_command_line_as_a_mapping_or_one_by_one() -> None:
    given = load_config(None, ["model.path=none", "data.shares={a: 3}", "data.shares.b=1"])
    assert given.data.shares == {"a": 3.0, "b": 1.0}
    with pytest.raises(ConfigError, match=r"data\.shares\.a cannot be used"):
        load_config(None, ["model.path=none", "data.shares={a: often}"])
