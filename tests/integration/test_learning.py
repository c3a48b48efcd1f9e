"""Learning happens: the reward rises, with every preset, on tasks small enough for a test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import agent_r1
from agent_r1.types import Episode, Task
from tests.helpers import commands
from tests.helpers.tiny_runs import RECIPE, tiny_overrides

PRESETS = sorted(path.stem for path in (Path(agent_r1.__file__).parent / "config" / "algorithm").glob("*.yaml"))


SLOW_LEARNERS = ("reinforce", "remax")
"""Without a baseline, or with the babble of a random model's greedy rollout for one, the gradient is noisier."""


def test_every_preset_of_the_field_is_there() -> None:
    named = "ppo steppo pspo grpo dr_grpo dapo gspo cispo step_grpo gigpo rloo reinforce reinforce_pp"
    assert set(PRESETS) == {*named.split(), "reinforce_pp_baseline", "remax"}


def likes_even_tokens(task: Task, episode: Episode) -> float:
    """The share of tokens with an even id: a random model gets about half."""
    ids = episode.steps[-1].action_ids
    return sum(token % 2 == 0 for token in ids) / len(ids)


MARKS = {
    **dict.fromkeys(PRESETS, (pytest.mark.slow,)),
    **dict.fromkeys(("steppo", "reinforce_pp", "rloo"), (pytest.mark.whole,)),
    **dict.fromkeys(("grpo", "ppo"), ()),
}
"""With and without a critic in `make test`, one of each other family in `make test-whole`, all in `make test-slow`."""


@pytest.mark.whole
@pytest.mark.parametrize("preset", [pytest.param(preset, marks=MARKS[preset]) for preset in PRESETS])
def test_the_reward_of_a_single_step_task_rises(tmp_path: Path, model_folder: Path, preset: str) -> None:
    run = tiny_overrides(
        tmp_path,
        model_folder,
        f"algorithm={preset}",
        "data.agent_name=single_step",
        "rollout.group_size=8",
        "rollout.groups_per_step=4",
        "optimizer.learning_rate=0.01",
        "algorithm.critic.learning_rate=0.001",
        f"trainer.steps={90 if preset in SLOW_LEARNERS else 40}",
        "trainer.save_every=90",
        # A random model always speaks to the limit: learning to stop would be another task.
        "algorithm.overlong_fraction=0",
    )
    commands.train(*run, quiet=True, reward=likes_even_tokens)
    lines = [json.loads(line) for line in (tmp_path / "tiny" / "metrics.jsonl").read_text().splitlines()]
    rewards = [line["reward/outcome"] for line in lines]
    assert rewards[0] < 0.7
    assert sum(rewards[-3:]) / 3 > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_the_quickstart_learns_to_use_its_tools(tmp_path: Path, preset: str) -> None:
    summary = commands.train(str(RECIPE), f"run.folder={tmp_path}", f"algorithm={preset}", quiet=True)
    assert summary.success_before is not None
    assert summary.success_after is not None
    assert summary.success_before <= 0.5
    assert summary.success_after >= 0.9
    assert summary.tool_calls_per_episode > 2
