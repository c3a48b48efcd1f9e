"""Following a run that another process writes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from agent_r1.errors import DataError
from agent_r1.runs import MetricsFollower, MetricsUpdate, RunFolder, follow_metrics, follow_trajectories
from agent_r1.runs.follow import TrajectoriesFollower
from agent_r1.runs.tracking import JsonlTracker

T = TypeVar("T")


def steps_of(update: MetricsUpdate | None) -> list[int]:
    return [] if update is None else [line["step"] for line in update.lines]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


@pytest.fixture
def follower(run: RunFolder) -> MetricsFollower:
    return MetricsFollower(run.path)


def log(run: RunFolder, *steps: int, value: float = 0.5) -> None:
    tracker = JsonlTracker(run.metrics)
    for step in steps:
        tracker.log(step, {"reward/outcome": value})
    tracker.close()


# --- metrics -------------------------------------------------------------------------------------------------------


def test_a_run_that_has_not_started_has_no_news(run: RunFolder, follower: MetricsFollower) -> None:
    assert follower.read_new() is None
    log(run)
    assert follower.read_new() is None


def test_each_line_is_given_once(run: RunFolder, follower: MetricsFollower) -> None:
    log(run, 1, 2)
    assert steps_of(follower.read_new()) == [1, 2]
    assert follower.read_new() is None
    log(run, 3)
    assert follower.read_new() == MetricsUpdate(lines=({"step": 3, "reward/outcome": 0.5},))


def test_half_a_line_is_given_when_it_is_whole(run: RunFolder, follower: MetricsFollower) -> None:
    log(run, 1)
    with run.metrics.open("a") as file:
        file.write('{"step": 2, "reward/out')
        file.flush()
        assert steps_of(follower.read_new()) == [1]
        assert follower.read_new() is None
        file.write('come": 0.25}\n')
    assert follower.read_new() == MetricsUpdate(lines=({"step": 2, "reward/outcome": 0.25},))


def test_a_resumed_run_gives_all_its_lines_again(run: RunFolder, follower: MetricsFollower) -> None:
    log(run, 1, 2, 3)
    follower.read_new()
    run.rewind(1)
    log(run, 2, value=0.75)
    update = follower.read_new()
    assert update is not None
    assert update.is_rewritten
    assert [(line["step"], line["reward/outcome"]) for line in update.lines] == [(1, 0.5), (2, 0.75)]
    log(run, 3)
    assert follower.read_new() == MetricsUpdate(lines=({"step": 3, "reward/outcome": 0.5},))


def test_a_rewind_that_leaves_no_line_is_news(run: RunFolder, follower: MetricsFollower) -> None:
    log(run, 1)
    follower.read_new()
    run.rewind(0)
    assert follower.read_new() == MetricsUpdate(lines=(), is_rewritten=True)
    assert follower.read_new() is None


def test_a_file_that_is_truncated_in_place_and_grows_past_the_old_end_is_noticed(
    run: RunFolder, follower: MetricsFollower
) -> None:
    log(run, 1, 2)
    follower.read_new()
    with run.metrics.open("r+") as file:
        file.truncate()
        file.write("".join(json.dumps({"step": step, "reward/outcome": 0.125}) + "\n" for step in range(1, 6)))
    update = follower.read_new()
    assert (steps_of(update), update is not None and update.is_rewritten) == ([1, 2, 3, 4, 5], True)


def test_a_new_run_in_the_place_of_a_renamed_one_is_noticed(run: RunFolder, follower: MetricsFollower) -> None:
    log(run, 1, 2)
    follower.read_new()
    run.path.rename(run.path.with_name("run.1"))
    assert follower.read_new() is None
    log(run, 1)
    update = follower.read_new()
    assert (steps_of(update), update is not None and update.is_rewritten) == ([1], True)


def test_a_line_that_is_no_metrics_is_an_error_that_names_it_every_time(
    run: RunFolder, follower: MetricsFollower
) -> None:
    log(run, 1)
    follower.read_new()
    with run.metrics.open("a") as file:
        file.write('\n{"step": "two"}\n')
    for _ in range(2):
        with pytest.raises(DataError, match=r"line 3 of .*metrics\.jsonl"):
            follower.read_new()


# --- trajectories --------------------------------------------------------------------------------------------------


def write(run: RunFolder, *files: Path) -> None:
    run.trajectories.mkdir(parents=True, exist_ok=True)
    for file in files:
        file.write_text("{}\n")


def test_trajectory_files_come_in_order_and_once(run: RunFolder) -> None:
    follower = TrajectoriesFollower(run.path)
    assert follower.read_new() == []
    write(run, run.step_trajectories(10), run.step_trajectories(2), run.eval_trajectories("before"))
    (run.trajectories / ".11.jsonl.7.partial").write_text("{")
    assert [file.name for file in follower.read_new()] == ["eval_before.jsonl", "2.jsonl", "10.jsonl"]
    assert follower.read_new() == []


def test_a_trajectory_file_that_a_resumed_run_writes_again_is_given_again(run: RunFolder) -> None:
    follower = TrajectoriesFollower(run.path)
    log(run, 1, 2)
    write(run, run.step_trajectories(1), run.step_trajectories(2))
    follower.read_new()
    run.rewind(1)
    assert follower.read_new() == []
    write(run, run.step_trajectories(2))
    assert follower.read_new() == [run.step_trajectories(2)]


# --- with a process that writes ------------------------------------------------------------------------------------

WRITER = """
    import sys, time
    from pathlib import Path
    from agent_r1.files import write_atomically
    from agent_r1.runs import RunFolder
    from agent_r1.runs.tracking import JsonlTracker

    run = RunFolder(Path(sys.argv[1]))

    def train(steps, value):
        tracker = JsonlTracker(run.metrics)
        for step in steps:
            write_atomically(run.step_trajectories(step), "{}")
            tracker.log(step, {"reward/outcome": value})
            time.sleep(0.01)
        tracker.close()

    train(range(1, 31), 0.5)
    with run.metrics.open("a") as file:
        file.write('{"step": 31, "rew')  # killed here
    time.sleep(0.2)
    run.rewind(20)
    train(range(21, 41), 0.75)
"""


async def take_until(updates: AsyncIterator[T], is_done: Callable[[T], bool]) -> list[T]:
    taken = []
    async for update in updates:
        taken.append(update)
        if is_done(update):
            break
    return taken


@pytest.mark.whole
def test_a_run_is_followed_from_another_process_over_a_kill_and_a_resume(run: RunFolder) -> None:
    async def follow() -> tuple[list[MetricsUpdate], list[Path]]:
        writer = subprocess.Popen([sys.executable, "-c", textwrap.dedent(WRITER), str(run.path)])
        try:
            return await asyncio.wait_for(
                asyncio.gather(
                    take_until(follow_metrics(run.path, poll_seconds=0.005), lambda update: 40 in steps_of(update)),
                    take_until(follow_trajectories(run.path, poll_seconds=0.005), lambda file: file.stem == "40"),
                ),
                timeout=60,
            )
        finally:
            assert writer.wait(timeout=60) == 0

    updates, files = asyncio.run(follow())
    curve: list[dict[str, Any]] = []
    for update in updates:
        curve = [*update.lines] if update.is_rewritten else [*curve, *update.lines]
    assert len(updates) > 2
    assert [(line["step"], line["reward/outcome"]) for line in curve] == [
        (step, 0.5 if step <= 20 else 0.75) for step in range(1, 41)
    ]
    assert curve == run.read_metrics()
    assert {file.stem for file in files} == {str(step) for step in range(1, 41)}
