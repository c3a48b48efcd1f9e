"""A plan from one configuration of a run, held against runs of two others. Tools that wait dominate the time, so that a
busy machine changes little."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

import agent_r1
from agent_r1.envs import AgentEnv
from agent_r1.planning import RecordedRun, make_plan, read_recorded_run
from agent_r1.seeds import unit_float
from agent_r1.types import Action, Episode, Observation, StepResult, Task

pytestmark = pytest.mark.whole

TOLERANCE = 0.3
"""docs/scaling/planning.md states it."""


class SlowTool(AgentEnv):
    """Two turns. Most take 0.1 to 0.4 s, by what was said, and one in twelve takes 1.2 s."""

    async def reset(self, task: Task) -> Observation:
        self.turns, self.messages = 0, task.prompt
        return Observation(messages=self.messages)

    async def step(self, action: Action) -> StepResult:
        share = unit_float(self.turns, *action.token_ids)
        await asyncio.sleep(1.2 if share < 1 / 12 else 0.1 + 0.3 * share)
        self.turns += 1
        self.messages = (*self.messages, action.as_message(), {"role": "user", "content": "and?"})
        return StepResult(observation=Observation(messages=self.messages), done=self.turns == 2)


def differs(task: Task, episode: Episode) -> float:
    return unit_float(*episode.steps[0].action_ids)


def train(folder: Path, model: Path, name: str, steps: int, *overrides: str) -> Path:
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"say {number}"}) + "\n" for number in range(5)))
    settings = [
        f"run.folder={folder}",
        f"run.name={name}",
        f"model.path={model}",
        f"data.train=[{rows}]",
        "rollout.groups_per_step=4",
        "rollout.group_size=4",
        "rollout.max_tokens=6",
        "trainer.save_every=90",
        f"trainer.steps={steps}",
        *overrides,
    ]
    agent_r1.train(overrides=settings, quiet=True, env=SlowTool, reward=differs)
    return folder / name


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> RecordedRun:
    folder = tmp_path_factory.mktemp("planned")
    return read_recorded_run(train(folder, model_folder, "recorded", 5))


def measured(path: Path, first: int, last: int) -> float:
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return fmean(line["time/step"] for line in lines if first <= line["step"] <= last)


def test_fewer_episodes_at_once_take_as_long_as_planned(
    recorded: RecordedRun, tmp_path: Path, model_folder: Path
) -> None:
    plan = make_plan(recorded, replace(recorded.setup, concurrency=4))
    seconds = measured(train(tmp_path, model_folder, "narrow", 3, "rollout.concurrency=4"), 2, 3)
    assert plan.estimate.step_seconds == pytest.approx(seconds, rel=TOLERANCE)
    assert seconds > 1.3 * recorded.mean_step  # another time than that of the record
    assert plan.changes[0].name == "rollout.concurrency=8"
    assert "tools" in {part.name for part in plan.without[:2]}


def test_overlap_saves_what_was_planned(recorded: RecordedRun, tmp_path: Path, model_folder: Path) -> None:
    for attempt in range(3):  # what else runs on this machine may slow one of the two runs alone
        if attempt:
            recorded = read_recorded_run(train(tmp_path, model_folder, f"recorded_{attempt}", 5))
        plan = make_plan(recorded, replace(recorded.setup, max_staleness=2))
        path = train(tmp_path, model_folder, f"overlap_{attempt}", 12, "rollout.max_staleness=2")
        seconds = measured(path, 3, 10)
        if plan.estimate.step_seconds == pytest.approx(seconds, rel=TOLERANCE):
            break
    assert plan.estimate.step_seconds == pytest.approx(seconds, rel=TOLERANCE)
    assert plan.estimate.step_seconds < 0.9 * recorded.mean_step


def test_the_record_itself_is_simulated_as_it_was_measured(recorded: RecordedRun) -> None:
    assert abs(make_plan(recorded, recorded.setup).model_error) < TOLERANCE
