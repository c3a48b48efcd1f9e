"""What tests of recipes share: runs on the sample rows of GSM8K, demonstrations turn by turn, one rollout."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agent_r1.chat import ChatRenderer
from agent_r1.data.demonstrations import tokenise_conversation
from agent_r1.data.tasks import load_tasks, read_rows
from agent_r1.engines import ScriptedEngine
from agent_r1.models.tiny import build_tiny_model, train_tokenizer
from agent_r1.registry import recipe_folder
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.training import RunPlan, prepare_plan
from agent_r1.types import SamplingParams, Task, TokenIds, Trajectory
from tests.helpers.commands import resolve

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "recipes" / "gsm8k" / "sample"
WHOLE_DATA = Path(os.environ.get("AGENT_R1_DATA") or ROOT.parent / "shared" / "data")
"""Where the whole data sets are, on machines that have them."""


@dataclass(frozen=True)
class SampleRun:
    """A recipe with the rows of the sample and a tiny model whose vocabulary is that of its demonstrations."""

    recipe: Path
    plan: RunPlan
    renderer: ChatRenderer
    demonstrations: list[dict[str, Any]]
    overrides: list[str]
    """What the plan was made with."""


@dataclass(frozen=True)
class MadeSample:
    """A recipe's sample as its data script makes it, and a renderer whose tokenizer is made of it."""

    folder: Path
    config: Any
    renderer: ChatRenderer

    @property
    def demonstrations(self) -> list[dict[str, Any]]:
        return list(read_rows(self.folder / "demonstrations.jsonl"))

    def tasks(self, split: str) -> list[Task]:
        return load_tasks([self.folder / f"{split}.parquet"])


def sample_data(folder: Path) -> Path:
    """A folder for AGENT_R1_DATA in which gsm8k is the sample."""
    folder.mkdir(exist_ok=True)
    (folder / "gsm8k").symlink_to(SAMPLE)
    return folder


def sample_run(recipe: Path, folder: Path) -> SampleRun:
    """Make the recipe's data in `folder/runs` and a tiny model in `folder/model`, as a run would find them."""
    overrides = [
        f"run.folder={folder / 'runs'}",
        f"model.path={folder / 'model'}",
        "rollout.context_length=512",
        "rollout.max_tokens=24",
    ]
    _, config = resolve([str(recipe), *overrides])
    with pytest.MonkeyPatch.context() as patch, recipe_folder(recipe):
        patch.setenv("AGENT_R1_DATA", str(sample_data(folder / "data")))
        plan = prepare_plan(config)
    rows = list(read_rows(Path(config.sft.data[0])))
    build_tiny_model(rows, folder / "model")
    return SampleRun(recipe, plan, ChatRenderer(train_tokenizer(rows)), rows, overrides)


def demonstrated_turns(renderer: ChatRenderer, row: Mapping[str, Any]) -> Iterator[tuple[TokenIds, TokenIds]]:
    """Every turn of a demonstration: what the model reads, and what it says."""
    for tokens in tokenise_conversation(renderer, row["messages"], row.get("tools", ())):
        ids, actions = tokens.token_ids, tokens.actions
        gaps = [(before, after) for before, after in pairwise(actions) if after > before + 1]
        starts = [actions[0], *(after for _, after in gaps)]
        ends = [*(before + 1 for before, _ in gaps), actions[-1] + 1]
        yield from ((ids[:start], ids[start:end]) for start, end in zip(starts, ends, strict=True))


def play(run: SampleRun, task: Task, engine: ScriptedEngine) -> Trajectory:
    """One rollout of a task by an engine that says what it is told."""
    rollout = Rollout(
        engine=engine,
        renderer=run.renderer,
        reward=run.plan.reward,
        make_env=run.plan.make_env,
        limits=RolloutLimits(retries=0, max_steps=run.plan.config.rollout.max_steps),
    )
    with recipe_folder(run.recipe):
        [group] = asyncio.run(rollout.run([task], group_size=1, sampling=SamplingParams(max_tokens=2000), seed=0))
    return group.trajectories[0]


def task_of(run: SampleRun, row: Mapping[str, Any]) -> Task:
    """The training task a demonstration was made of."""
    asked = next(message["content"] for message in row["messages"] if message["role"] == "user")
    return next(task for task in run.plan.train_tasks if task.prompt[-1]["content"] == asked)
