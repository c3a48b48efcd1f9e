"""The curriculum: levels rise with success, the sequence of tasks is a function of seed and state, resume is exact."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from agent_r1.data import Curriculum, task_from_row
from agent_r1.errors import ConfigError
from agent_r1.types import Group, StopReason, Task, Trajectory

TASKS = [Task(task_id=f"{level}-{number}", prompt=(), difficulty=level) for level in (2, 5, 9) for number in range(6)]


def curriculum(
    tasks: list[Task] = TASKS, *, window: int = 8, threshold: float = 0.5, review: float = 0.25
) -> Curriculum:
    return Curriculum(tasks, batch_size=4, seed=3, threshold=threshold, window=window, review=review)


def group(task: Task, *successes: float, failed: int = 0) -> Group:
    made = [
        Trajectory(
            task_id=task.task_id, group_id=0, member=index, steps=(), outcome_reward=value, stop_reason=StopReason.DONE
        )
        for index, value in enumerate(successes)
    ]
    lost = [replace(made[0], outcome_reward=0.0, stop_reason=StopReason.ENV_ERROR)] * failed
    return Group(task=task, group_id=0, trajectories=(*made, *lost))


def run(sampler: Curriculum, num_steps: int, success: float = 1.0, first: int = 0) -> list[list[str]]:
    """The ids of the tasks of each batch, when two rollouts of every task earn `success`."""
    batches = []
    for step in range(first, first + num_steps):
        tasks = sampler.batch(step)
        batches.append([task.task_id for task in tasks])
        sampler.observe([group(task, success, success) for task in tasks], (step + 1) * 4)
    return batches


def level(sampler: Curriculum) -> float:
    return sampler.observe([], 0)["curriculum/level"]


def test_it_begins_with_the_lowest_difficulty_and_has_each_task_once_per_epoch() -> None:
    sampler = curriculum()
    drawn = [sampler.at(position).task_id for position in range(12)]
    assert Counter(drawn) == {f"2-{number}": 2 for number in range(6)}
    assert drawn[:6] != drawn[6:]


def test_the_level_rises_when_success_in_the_window_passes_the_threshold() -> None:
    sampler = curriculum(threshold=0.5)
    task = TASKS[0]
    assert sampler.observe([group(task, 1, 1, 0, 0)], 4) == {
        "curriculum/level": 2.0,
        "curriculum/success": 0.5,
        "curriculum/episodes": 4.0,
    }
    sampler.observe([group(task, 0, 0, 0)], 8)  # 7 episodes: the window is not full
    assert level(sampler) == 2
    sampler.observe([group(task, 0)], 12)  # 2 of 8
    assert level(sampler) == 2
    sampler.observe([group(task, 1, 1)], 16)  # of the last 8, two: the first two have left the window
    assert level(sampler) == 2
    sampler.observe([group(task, 1, 1)], 20)
    assert level(sampler) == 5


def test_failed_rollouts_and_reviews_do_not_count() -> None:
    sampler = curriculum(window=2)
    sampler.observe([group(TASKS[0], 1.0, failed=5)], 4)
    assert level(sampler) == 2
    sampler.observe([group(TASKS[0], 1.0)], 8)
    assert level(sampler) == 5
    sampler.observe([group(TASKS[0], 1.0, 1.0, 1.0)], 12)
    assert sampler.observe([], 0)["curriculum/episodes"] == 0


def test_it_stays_at_the_highest_level() -> None:
    sampler = curriculum()
    run(sampler, 10)
    assert level(sampler) == 9


def test_a_new_level_begins_with_the_next_batch_and_reviews_the_levels_below() -> None:
    sampler = curriculum(review=0.25)
    first = run(sampler, 1)
    assert {name[0] for name in first[0]} == {"2"}
    later = [sampler.at(position).task_id[0] for position in range(4, 84)]
    assert Counter(later) == {"5": 60, "2": 20}
    assert later[:4].count("2") == 1


def test_without_review_only_the_level_is_drawn() -> None:
    sampler = curriculum(review=0.0)
    run(sampler, 1)
    assert {sampler.at(position).difficulty for position in range(4, 40)} == {5}


def test_a_position_keeps_its_task_when_the_level_rises_after_it_was_started() -> None:
    """Groups in flight are rolled out again after a resume, with the tasks that they had."""
    sampler = curriculum()
    before = [sampler.at(position) for position in range(10)]
    sampler.observe([group(TASKS[0], *[1.0] * 8)], 10)
    assert [sampler.at(position) for position in range(10)] == before
    assert sampler.at(10).difficulty == 5


@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_a_resumed_curriculum_draws_what_the_uninterrupted_one_draws(stop: int) -> None:
    whole = run(curriculum(window=16), 9)
    interrupted = curriculum(window=16)
    begun = run(interrupted, stop)
    resumed = curriculum(window=16)
    resumed.load_state_dict(interrupted.state_dict())
    assert begun + run(resumed, 9 - stop, first=stop) == whole
    assert "9" in {name[0] for name in whole[-1]}


def test_refills_are_of_the_level_of_their_batch() -> None:
    sampler = curriculum()
    run(sampler, 1)
    assert {task.difficulty for task in sampler.extra(0, 1, 20)} == {2}
    assert {task.difficulty for task in sampler.extra(1, 1, 20)} == {5}


def test_rows_without_levels_are_refused() -> None:
    with pytest.raises(ConfigError, match="1 of 19 training rows have none, such as 'x'"):
        curriculum([*TASKS, Task(task_id="x", prompt=())])
    with pytest.raises(ConfigError, match="at least two difficulties; all 6 training rows have 2"):
        curriculum(TASKS[:6])


@pytest.mark.parametrize(
    ("value", "difficulty"), [(3, 3), (2.0, 2), (0, None), (-1, None), (True, None), ("hard", None), (1.5, None)]
)
def test_only_whole_numbers_from_1_are_levels(value: object, difficulty: int | None) -> None:
    row = {"question": "2+2?", "answer": "4", "difficulty": value}
    assert task_from_row(row, "t").difficulty == difficulty
