"""The test of my_task: it can be solved, demonstrations look like rollouts, it trains."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import agent_r1
from agent_r1 import load_config
from agent_r1.chat import ChatRenderer
from agent_r1.data import load_tasks, tokenise_conversation
from agent_r1.engines import ScriptedEngine
from agent_r1.models import train_tokenizer
from agent_r1.registry import recipe_folder
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.training import RunPlan, prepare_plan
from agent_r1.types import SamplingParams, Task, TokenIds, Trajectory

from .data_preprocess import process_my_task as process

RECIPE = Path(__file__).parent
CASE = process.draw_case(random.Random(0))


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> RunPlan:
    """What `agent-r1 train` works with: the reward, the environment and the rows that `base.yaml` names."""
    config = load_config(RECIPE, {"run.folder": tmp_path_factory.mktemp("runs")})
    with recipe_folder(RECIPE):
        return prepare_plan(config)


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    rng = random.Random(1)
    shown = [process.demonstrations(process.draw_case(rng), careful=True) for _ in range(100)]
    return ChatRenderer(train_tokenizer([row for rows in shown for row in rows]))


def demonstrated_turns(renderer: ChatRenderer, *, careful: bool) -> Iterator[tuple[TokenIds, TokenIds]]:
    """Every turn of the demonstrations: what the model reads, and what it says."""
    for row in process.demonstrations(CASE, careful=careful):
        for tokens in tokenise_conversation(renderer, row["messages"], row.get("tools", ())):
            ids, actions = tokens.token_ids, tokens.actions
            starts = [actions[0], *(after for before, after in pairwise(actions) if after > before + 1)]
            ends = [*(before + 1 for before, after in pairwise(actions) if after > before + 1), actions[-1] + 1]
            yield from ((ids[:start], ids[start:end]) for start, end in zip(starts, ends, strict=True))


def play(plan: RunPlan, renderer: ChatRenderer, engine: ScriptedEngine) -> Trajectory:
    """One rollout on CASE by an engine that says what it is told."""
    row = process.task_row(CASE, "test", 0)
    task = Task(
        task_id="case",
        prompt=tuple(row["prompt"]),
        agent_name=row["agent_name"],
        reward_model=row["reward_model"],
        env_kwargs=row["env_kwargs"],
    )
    limits = RolloutLimits(retries=0)
    rollout = Rollout(engine=engine, renderer=renderer, reward=plan.reward, make_env=plan.make_env, limits=limits)
    with recipe_folder(RECIPE):
        groups = asyncio.run(rollout.run([task], group_size=1, sampling=SamplingParams(), seed=0))
    return groups[0].trajectories[0]


def test_a_careful_demonstration_solves_its_task(plan: RunPlan, renderer: ChatRenderer) -> None:
    said = [action for _, action in demonstrated_turns(renderer, careful=True)]
    trajectory = play(plan, renderer, ScriptedEngine(said))
    assert trajectory.outcome_reward == 1.0, trajectory.error
    assert len(trajectory.steps) == 3


def test_stopping_half_way_earns_nothing(plan: RunPlan, renderer: ChatRenderer) -> None:
    said = [action for _, action in demonstrated_turns(renderer, careful=False)]
    trajectory = play(plan, renderer, ScriptedEngine(said))
    assert (trajectory.outcome_reward, trajectory.error) == (0.0, None)


def test_the_warm_start_teaches_the_prompts_that_a_rollout_shows(plan: RunPlan, renderer: ChatRenderer) -> None:
    turns = list(demonstrated_turns(renderer, careful=True))
    engine = ScriptedEngine([action for _, action in turns])
    play(plan, renderer, engine)
    assert [prompt for prompt, _ in engine.requests] == [prompt for prompt, _ in turns]


def test_no_prompt_gives_its_answer_away(plan: RunPlan) -> None:
    tasks = [*plan.train_tasks, *plan.eval_tasks]
    assert not [task for task in tasks if task.ground_truth in str(task.prompt)]


def test_the_data_is_written_where_it_is_wanted(tmp_path: Path) -> None:
    process.write_data(tmp_path / "data")
    train, held_out = (load_tasks([tmp_path / "data" / f"{split}.parquet"]) for split in ("train", "eval"))
    assert (len(train), len(held_out)) == (process.NUM_TRAIN, process.NUM_EVAL)


def test_it_trains(tmp_path: Path) -> None:
    small = {"sft.steps": 2, "trainer.steps": 2, "rollout.groups_per_step": 2, "rollout.group_size": 2}
    summary = agent_r1.train(RECIPE, overrides={**small, "eval.max_tasks": 2, "run.folder": tmp_path}, quiet=True)
    assert summary.steps == 2
    assert (tmp_path / "my_task" / "hf" / "model.safetensors").is_file()
