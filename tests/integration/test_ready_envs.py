"""`env=KIND:NAME`: environments that people already have are trained in one line, without a recipe or a data file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import agent_r1
from agent_r1.config import from_yaml


def tiny(folder: Path, *more: str) -> list[str]:
    """One short training step."""
    return [
        f"run.folder={folder}",
        "rollout.groups_per_step=2",
        "rollout.group_size=2",
        "rollout.max_steps=2",
        "rollout.max_tokens=8",
        "trainer.steps=1",
        "eval.max_tasks=2",
        *more,
    ]


def trained(folder: Path, name: str) -> tuple[Any, dict[str, Any], list[Any]]:
    """The saved configuration, the metrics of the first step, and the recorded trajectories of a run."""
    run = folder / name
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first = next(entry for entry in metrics if "reward/process" in entry)
    return from_yaml((run / "config.yaml").read_text()), first, agent_r1.load_trajectories(run)


def test_a_gymnasium_environment_is_trained_without_a_recipe_or_data(tmp_path: Path, model_folder: Path) -> None:
    agent_r1.train(
        env="gym:FrozenLake-v1",
        model=model_folder,
        overrides=tiny(tmp_path, "env.tasks=8", "env.eval_tasks=2", "env.arguments.is_slippery=false"),
        quiet=True,
    )
    config, metrics, trajectories = trained(tmp_path, "FrozenLake-v1")
    assert config.env["name"] == "gym"
    assert config.env["make"] == "FrozenLake-v1"
    assert config.env["arguments"] == {"is_slippery": False, "render_mode": "ansi"}
    assert config.reward.function == "gym"
    assert len(trajectories) == 4
    assert not any(trajectory.is_failure for trajectory in trajectories)
    assert metrics["error/failed_rollouts"] == 0
    first = trajectories[0].steps[0].observation.messages
    assert first[-1]["content"] == "[S]FFF\nFHFH\nFFFH\nHFFG\n0"
