"""A curriculum in whole runs: with overlap, with worker processes, on several ranks, and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from agent_r1.data import Curriculum, load_tasks
from agent_r1.runs import RunFolder, list_checkpoints
from recipes.quickstart.shop import Basket, task_row
from tests.helpers import commands
from tests.helpers.tiny_runs import score_variety, tiny_overrides
from tests.helpers.torchrun import Torchrun

LEVELS = (1, 2, 3)
CURRICULUM = ["data.curriculum.enabled=true", "data.curriculum.window=8", "data.curriculum.review=0.25"]
PROCESSES = ["rollout.workers=processes", "rollout.processes.num_workers=2"]
STALE = "rollout.max_staleness=1"


def always_solved(task: Any, episode: Any) -> dict[str, float]:
    """Every episode is a success, so that the level rises whenever the window is full; rewards differ."""
    return {"score": score_variety(task, episode), "success": 1.0}


def arguments(folder: Path, model: Path, name: str, *extra: str) -> list[str]:
    """The command line of a tiny run on rows of three difficulties."""
    rows = [
        {**task_row(Basket(quantities={"egg": 1 + 4 * level + number}, prices={"egg": 3})), "difficulty": level}
        for level in LEVELS
        for number in range(3)
    ]
    reward = f"reward.function={__name__}:always_solved"
    overrides = tiny_overrides(folder, model, f"run.name={name}", reward, "trainer.steps=5", *CURRICULUM, *extra)
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return overrides


def levels_of(folder: Path) -> list[float]:
    return [line["curriculum/level"] for line in RunFolder(folder).read_metrics() if "curriculum/level" in line]


def trained_tasks(folder: Path) -> list[list[tuple[int, str]]]:
    """Group and task of every trajectory, step by step."""
    files = [file for file in RunFolder(folder).trajectory_files() if file.stem.isdigit()]
    lines = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    return [sorted((line["group_id"], line["task_id"]) for line in step) for step in lines]


def curriculum_of(folder: Path) -> Curriculum:
    """The curriculum as the last checkpoint of a run has it."""
    config = RunFolder(folder).read_config()
    file = list_checkpoints(folder / "checkpoints")[-1][1] / "state.pt"
    state = torch.load(file, map_location="cpu", weights_only=True)["collector"]
    tasks = load_tasks(config.data.train)
    levels = config.data.curriculum
    made = Curriculum(tasks, batch_size=2, seed=0, threshold=levels.threshold, window=8, review=levels.review)
    made.load_state_dict(state["sampler"])
    return made


@pytest.mark.slow
def test_worker_processes_draw_and_raise_as_one_process_does(tmp_path: Path, model_folder: Path) -> None:
    commands.train(*arguments(tmp_path, model_folder, "plain"), quiet=True)
    commands.train(*arguments(tmp_path, model_folder, "apart", *PROCESSES), quiet=True)
    plain, apart = tmp_path / "plain", tmp_path / "apart"
    assert levels_of(plain) == [1, 2, 3, 3, 3]  # a step has a window of episodes; the first review is group 5
    assert levels_of(apart) == levels_of(plain)
    assert trained_tasks(apart) == trained_tasks(plain)


@pytest.mark.whole
@pytest.mark.parametrize("workers", [[], pytest.param(PROCESSES, marks=pytest.mark.slow)], ids=["local", "processes"])
def test_with_overlap_groups_keep_their_tasks_when_the_level_rises_also_after_a_resume(
    tmp_path: Path, model_folder: Path, workers: list[str]
) -> None:
    run = arguments(tmp_path, model_folder, "stale", STALE, *workers)
    commands.train(*run, "trainer.steps=3", quiet=True)
    commands.train(*run, "trainer.steps=8", quiet=True)
    folder = tmp_path / "stale"
    levels = levels_of(folder)
    assert len(levels) == 8
    assert levels == sorted(levels)  # it never falls
    assert levels[0] == 1
    assert levels[-1] == 3
    curriculum = curriculum_of(folder)
    trained = [entry for step in trained_tasks(folder) for entry in step]
    assert [task for _, task in trained] == [curriculum.at(group).task_id for group, _ in trained]
    assert sorted({group for group, _ in trained}) == [*range(16)]  # each group once, none lost


@pytest.mark.slow
@pytest.mark.parametrize("extra", [[], PROCESSES, [STALE, *PROCESSES]], ids=["local", "processes", "stale"])
def test_two_ranks_have_one_curriculum(tmp_path: Path, model_folder: Path, extra: list[str]) -> None:
    with Torchrun("train", *arguments(tmp_path, model_folder, "two", *extra)) as run:
        assert run.finish() == 0, run.text
    two = tmp_path / "two"
    if STALE in extra:
        trained = [entry for step in trained_tasks(two) for entry in step]
        curriculum = curriculum_of(two)
        assert [task for _, task in trained] == [curriculum.at(group).task_id for group, _ in trained]
        assert levels_of(two)[-1] > 1
        return
    commands.train(*arguments(tmp_path, model_folder, "one"), quiet=True)
    assert levels_of(two) == levels_of(tmp_path / "one")
    assert trained_tasks(two) == trained_tasks(tmp_path / "one")
