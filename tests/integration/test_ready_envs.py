"""`env=KIND:NAME`: environments that people already have are trained in one line, without a recipe or a data file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import agent_r1
from agent_r1.cli.app import app
from agent_r1.config import from_yaml
from agent_r1.envs import ready_env
from agent_r1.errors import RolloutsFailingError
from agent_r1.models.tiny import build_tiny_model
from tests.helpers.frozen_lake import demonstrations
from tests.helpers.tiny_gym import Line
from tests.helpers.tiny_runs import score_variety


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


@pytest.mark.whole
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


@pytest.mark.whole
def test_a_data_set_of_reasoning_gym_is_trained_with_its_own_scorer(tmp_path: Path, model_folder: Path) -> None:
    pytest.importorskip("reasoning_gym")
    settings = ["env.tasks=8", "env.eval_tasks=4", "env.arguments.max_animals=3", "rollout.max_tokens=16"]
    agent_r1.train(
        env="reasoning_gym:leg_counting", model=model_folder, overrides=tiny(tmp_path, *settings), quiet=True
    )
    config, metrics, trajectories = trained(tmp_path, "leg_counting")
    assert config.reward.function == "reasoning_gym"
    assert metrics["error/failed_rollouts"] == 0
    assert {len(trajectory.steps) for trajectory in trajectories} == {1}
    assert "how many legs" in trajectories[0].steps[0].observation.messages[-1]["content"]


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """Rows for the MCP server's tools."""
    rows = tmp_path / "questions.jsonl"
    rows.write_text("".join(json.dumps({"question": f"{n} + 1?", "answer": n + 1}) + "\n" for n in range(4)))
    return rows


@pytest.mark.whole
def test_an_mcp_server_is_trained_as_the_whole_set_of_tools(
    tmp_path: Path, model_folder: Path, questions: Path
) -> None:
    pytest.importorskip("mcp")
    command = f"{sys.executable} {Path(__file__).parents[1] / 'helpers' / 'mcp_server.py'}"
    agent_r1.train(
        env=f"mcp:{command}",
        model=model_folder,
        data=questions,
        reward=score_variety,
        overrides=tiny(tmp_path, "run.name=mcp", "env.tools=[add, refuse]"),
        quiet=True,
    )
    config, metrics, trajectories = trained(tmp_path, "mcp")
    assert config.tools["mcp"]["server"]["command"] == command.split()
    assert metrics["error/failed_rollouts"] == 0
    tools = trajectories[0].steps[0].observation.tools
    assert [tool["function"]["name"] for tool in tools] == ["add", "refuse"]


@pytest.mark.whole
def test_a_tiny_model_learns_to_cross_the_frozen_lake(tmp_path: Path) -> None:
    """From players who choose at random in half of their turns to the way across, in nine steps."""
    lake = {
        "arguments": {"is_slippery": False},
        "observe": "tests.helpers.frozen_lake:field",
        "instructions": "Cross.",
    }
    ready = ready_env({"name": "gym:FrozenLake-v1", **lake})
    played = demonstrations(ready.train[:200], ready.env, wrong=0.5, steps=8)
    build_tiny_model(played, tmp_path / "untrained")
    shared = {**{f"env.{key}": value for key, value in lake.items()}, "run.folder": str(tmp_path)}
    warm = agent_r1.sft(
        env="gym:FrozenLake-v1",
        model=tmp_path / "untrained",
        demonstrations=played,
        overrides={**shared, "run.name": "warm", "sft.steps": 40, "sft.batch_size": 16, "sft.learning_rate": 2e-3},
        quiet=True,
    )
    settings = {
        "env.eval_tasks": 0,
        "rollout.groups_per_step": 4,
        "rollout.max_tokens": 4,
        "trainer.steps": 9,
        "optimizer.learning_rate": 3e-4,
    }
    agent_r1.train(env="gym:FrozenLake-v1", model=warm, overrides={**shared, **settings}, quiet=True)
    lines = (tmp_path / "FrozenLake-v1" / "metrics.jsonl").read_text().splitlines()
    success = [entry["reward/success"] for entry in map(json.loads, lines) if "reward/success" in entry]
    assert sum(success[:2]) / 2 < 0.4
    assert sum(success[-2:]) / 2 > 0.75


@pytest.mark.whole
def test_the_command_line_checks_trains_and_evaluates_without_a_recipe(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`observe` is in a file of the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("lake.py").write_text("def where(state):\n    return f'You stand on field {state}.'\n")
    given = ["env=gym:FrozenLake-v1", "env.observe=lake:where", f"model.path={model_folder}", *tiny(Path("runs"))]
    dry = CliRunner().invoke(app, ["train", *given, "--dry-run"])
    assert dry.exit_code == 0, dry.output
    assert "train: 1000 tasks   eval: 64 tasks" in dry.output
    assert "make: FrozenLake-v1" in dry.output
    train = CliRunner().invoke(app, ["train", *given])
    assert train.exit_code == 0, train.output
    _, _, trajectories = trained(Path("runs"), "FrozenLake-v1")
    assert trajectories[0].steps[0].observation.messages[-1]["content"] == "You stand on field 0."
    figures = ["eval", *given, "--model", "runs/FrozenLake-v1/hf", "--json", "figures.json"]
    evaluated = CliRunner().invoke(app, figures)
    assert evaluated.exit_code == 0, evaluated.output
    assert "eval/FrozenLake-v1/greedy" in json.loads(Path("figures.json").read_text())["metrics"]
    checked = CliRunner().invoke(app, ["check", *given, "--groups", "1", "--members", "2"])
    assert "1000 rows to train on, 64 held out" in checked.output, checked.output


@pytest.mark.whole
def test_an_environment_that_breaks_is_an_environment_error_with_its_name(tmp_path: Path, model_folder: Path) -> None:
    with pytest.raises(RolloutsFailingError, match=r"(?s)step of GymEnv failed \(env_error\).*the lake is dry"):
        agent_r1.train(
            env="gym:tests.integration.test_ready_envs:DryLake",
            model=model_folder,
            overrides=tiny(tmp_path, "env.act=tests.integration.test_ready_envs:first", "rollout.retries=0"),
            quiet=True,
        )


class DryLake(Line):
    """Breaks at its first step."""

    def step(self, action: Any) -> Any:
        raise OSError("the lake is dry")


def first(text: str) -> int:
    """Any text is the first action of `Line`."""
    return 5
