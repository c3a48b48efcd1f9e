"""Whole runs: what they write, that a resumed run equals the uninterrupted one, that bad input costs nothing."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from agent_r1.cli import app
from agent_r1.config import from_yaml
from agent_r1.engines.local import LocalEngine
from agent_r1.errors import AgentR1Error, ConfigError, DataError, RolloutsFailingError, UnknownNameError
from agent_r1.runs import plan_opening, read_trajectories
from tests.helpers import commands
from tests.helpers.forks import forks, run_python
from tests.helpers.tiny_runs import score_variety, tiny_overrides, write_tasks

ROOT = Path(__file__).parents[2]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "hf" / "model.safetensors")


def same_weights(left: Path, right: Path) -> bool:
    one, other = weights(left), weights(right)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


PLAYS = """
import asyncio
from agent_r1.data.tasks import write_rows

def rows(config):
    asyncio.run(rows_async(config))

async def rows_async(config):
    await asyncio.sleep(0)
    write_rows(config.data.train[0], [{"prompt": "hello", "agent_name": "single_step"}])
"""


@pytest.mark.parametrize("hook", ["rows", "rows_async"])
def test_a_preparation_may_have_an_event_loop_of_its_own(hook: str, tmp_path: Path, model_folder: Path) -> None:
    (tmp_path / "plays.py").write_text(PLAYS)
    (tmp_path / "base.yaml").write_text("defaults: [agent_r1, {algorithm: grpo}, _self_]")
    small = ["trainer.steps=1", "rollout.max_tokens=4", "rollout.groups_per_step=1", f"run.folder={tmp_path}"]
    made = [f"data.train=[{tmp_path / 'made.jsonl'}]", f"data.prepare=plays:{hook}"]
    summary = commands.train(str(tmp_path), *made, *small, model=model_folder, quiet=True)
    assert summary.steps == 1


@pytest.fixture
def run(tmp_path: Path, model_folder: Path) -> list[str]:
    return tiny_overrides(tmp_path, model_folder)


def test_a_reward_that_changes_the_working_folder_moves_no_file_of_the_run(
    run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wander(task: Any, episode: Any) -> float:
        os.chdir(tmp_path / "elsewhere")
        return score_variety(task, episode)

    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    commands.train(*run, "run.folder=.", "trainer.steps=2", quiet=True, reward=wander)
    assert not list((tmp_path / "elsewhere").iterdir())
    written = {path.name for path in (tmp_path / "tiny").iterdir()}
    assert {"config.yaml", "metrics.jsonl", "trajectories", "checkpoints", "hf", "summary.json"} <= written
    assert len(list((tmp_path / "tiny" / "trajectories").glob("*.jsonl"))) == 2


def test_a_run_that_fails_before_its_first_step_closes_its_engine(
    run: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[LocalEngine] = []

    async def close(engine: LocalEngine) -> None:
        closed.append(engine)

    def broken(*args: Any, **kwargs: Any) -> None:
        raise MemoryError("no room for an optimizer")

    monkeypatch.setattr(LocalEngine, "close", close)
    monkeypatch.setattr("agent_r1.training.components.make_learner", broken)
    with pytest.raises(MemoryError, match="no room"):
        commands.train(*run, quiet=True)
    assert len(closed) == 1


@pytest.mark.whole
def test_a_run_folder_is_complete(run: list[str], tmp_path: Path) -> None:
    held_out = write_tasks(tmp_path / "held_out.jsonl", count=3)
    summary = commands.train(
        *run,
        f"data.eval=[{held_out}]",
        "eval.samples=2",
        "tracking.trackers=[tensorboard]",
        quiet=True,
        reward=score_variety,
    )
    folder = tmp_path / "tiny"
    assert (folder / "config.yaml").is_file()
    assert from_yaml((folder / "config.yaml").read_text()).trainer.steps == 4
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4, 4]
    assert {"eval/all/greedy", "eval/all/mean", "eval/all/best@2", "eval/all/maj@2"} <= set(lines[-1])
    written = json.loads((folder / "summary.json").read_text())
    assert {"success_before", "success_after", "train_seconds", "steps", "tool_calls_per_episode"} <= set(written)
    assert written["steps"] == summary.steps == 4
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step_3", "step_4"]
    assert list((folder / "tensorboard").iterdir())
    episodes = list(read_trajectories(folder / "trajectories" / "1.jsonl"))
    assert len(episodes) == 8
    assert all(len(step.action_ids) == len(step.rollout_logprobs) for t in episodes for step in t.steps)


@pytest.mark.parametrize("adapters", [0, pytest.param(2, marks=pytest.mark.whole)])
def test_a_run_without_checkpoints_has_its_model_and_its_summary_and_is_finished(
    run: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], adapters: int
) -> None:
    run = [*run, f"model.lora.rank={adapters}", "trainer.keep_checkpoints=0", "trainer.steps=2"]
    summary = commands.train(*run, reward=score_variety)
    assert summary.steps == 2
    assert summary.warnings == []
    assert {path.name for path in (tmp_path / "tiny").iterdir()} >= {"hf", "summary.json", "metrics.jsonl"}
    assert not (tmp_path / "tiny" / "checkpoints").exists()
    assert "this run writes no checkpoints" in capsys.readouterr().out
    again = plan_opening(commands.resolve(run)[1])
    assert again.story.startswith(f"{tmp_path / 'tiny'} holds a finished run. It is moved to {tmp_path / 'tiny.1'}")


@pytest.mark.whole
def test_training_moves_the_weights_and_the_same_seed_moves_them_the_same_way(run: list[str], tmp_path: Path) -> None:
    run = [*run, "trainer.steps=2"]
    commands.train(*run, quiet=True, reward=score_variety)
    commands.train(*run, "run.name=again", quiet=True, reward=score_variety)
    commands.train(*run, "run.name=other", "trainer.seed=1", quiet=True, reward=score_variety)
    assert same_weights(tmp_path / "tiny", tmp_path / "again")
    assert not same_weights(tmp_path / "tiny", tmp_path / "other")


@pytest.mark.parametrize("preset", ["grpo", pytest.param("ppo", marks=pytest.mark.whole)])
@pytest.mark.parametrize("stop_at", [pytest.param(1, marks=pytest.mark.whole), 3])
def test_a_resumed_run_equals_the_uninterrupted_one(
    run: list[str], tmp_path: Path, preset: str, stop_at: int, uninterrupted: Callable[..., Path]
) -> None:
    """Six tasks, two per step: step 3 is the epoch's boundary."""
    settings = (f"algorithm={preset}", "algorithm.minibatches=2", "algorithm.kl.coefficient=0.01")
    run = [*run, *settings]
    commands.train(*run, f"trainer.steps={stop_at}", quiet=True, reward=score_variety)
    commands.train(*run, quiet=True, reward=score_variety)
    assert same_weights(uninterrupted(*settings), tmp_path / "tiny")
    steps = [json.loads(line)["step"] for line in (tmp_path / "tiny" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4]


@pytest.mark.whole
def test_a_run_that_is_stopped_by_failing_rollouts_resumes_where_it_stopped(
    run: list[str], tmp_path: Path, uninterrupted: Callable[..., Path]
) -> None:
    scored = 0

    def away_for_a_while(task: Any, episode: Any) -> float:
        nonlocal scored
        scored += 1
        if scored > 2 * 8:
            raise ConnectionError("the judge does not answer")
        return score_variety(task, episode)

    run = [*run, "trainer.save_every=100", "rollout.retries=0"]
    with pytest.raises(RolloutsFailingError, match="all 8 rollouts"):
        commands.train(*run, quiet=True, reward=away_for_a_while)
    assert [path.name for path in (tmp_path / "tiny" / "checkpoints").iterdir()] == ["step_2"]
    commands.train(*run, quiet=True, reward=score_variety)
    assert same_weights(uninterrupted(), tmp_path / "tiny")


KILLED_RUN = """
import sys
import agent_r1
from tests.integration.test_runs import score_variety
agent_r1.train(sys.argv[1], overrides=sys.argv[2:], quiet=True, reward=score_variety)
"""


@pytest.mark.whole
def test_a_run_killed_at_an_arbitrary_moment_goes_on_bit_for_bit(run: list[str], tmp_path: Path) -> None:
    run = [*run, "trainer.steps=12"]
    commands.train(*run, "run.name=whole", quiet=True, reward=score_variety)
    command = ["-c", KILLED_RUN, *run]
    folder = tmp_path / "tiny"
    rng = random.Random(time.time_ns())
    kills = 0
    while kills < 2:
        process = forks().start(["python", *command], ROOT)
        before = newest_checkpoint(folder)
        while newest_checkpoint(folder) == before and process.poll() is None:
            time.sleep(0.005)
        time.sleep(rng.uniform(0.0, 0.4))
        if process.poll() is not None:
            break
        process.close()  # SIGKILL
        kills += 1
    assert kills, "the run ended before it could be killed"
    done = run_python(*command, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert same_weights(tmp_path / "whole", folder)
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 13))
    assert json.loads((folder / "summary.json").read_text())["steps"] == 12


def newest_checkpoint(folder: Path) -> int:
    names = [path.name for path in (folder / "checkpoints").glob("step_*")]
    return max((int(name.removeprefix("step_")) for name in names), default=0)


@pytest.mark.whole
def test_the_exported_model_evaluates_and_trains_again(run: list[str], tmp_path: Path) -> None:
    run = [*run, "trainer.steps=1"]
    commands.train(*run, quiet=True, reward=score_variety)
    exported = tmp_path / "tiny" / "hf"
    evaluation = commands.evaluate(*run, quiet=True, reward=score_variety, model=exported)
    assert evaluation.metrics["eval/all/steps"] > 0
    again = commands.train(*run, "run.name=second", quiet=True, reward=score_variety, model=exported)
    assert again.steps == 1


@pytest.mark.whole
def test_a_finished_run_is_moved_aside_not_lost(run: list[str], tmp_path: Path) -> None:
    commands.train(*run, "trainer.steps=1", quiet=True, reward=score_variety)
    commands.train(*run, "trainer.steps=1", quiet=True, reward=score_variety)
    assert (tmp_path / "tiny.1" / "summary.json").is_file()
    assert (tmp_path / "tiny" / "summary.json").is_file()


@pytest.mark.whole
def test_sft_lowers_the_loss_and_writes_a_model(run: list[str], tmp_path: Path) -> None:
    demonstrations = tmp_path / "demonstrations.jsonl"
    row = {"messages": [{"role": "user", "content": "What do 2 egg cost?"}, {"role": "assistant", "content": "6"}]}
    demonstrations.write_text(json.dumps(row) + "\n")
    folder = commands.sft(*run, f"sft.data=[{demonstrations}]", "sft.steps=60", "sft.learning_rate=0.01", quiet=True)
    losses = [json.loads(line)["loss/sft"] for line in (tmp_path / "tiny" / "metrics.jsonl").read_text().splitlines()]
    assert losses[0] > 5.0
    assert losses[-1] < 0.5
    assert (folder / "model.safetensors").is_file()


# --- rule 12: one clear error before any model is loaded --------------------------------------------------------------

BAD_INPUT: list[tuple[list[str], type[AgentR1Error], list[str]]] = [
    (["trainer.stepz=3"], ConfigError, ["trainer.stepz", "trainer.steps"]),
    (["algorithm=grop"], UnknownNameError, ["grop", "Did you mean 'grpo'"]),
    (["algorithm.loss.clip_hihg=0.3"], ConfigError, ["clip_hihg", "clip_high"]),
    (["algorithm.estimator.name=grup"], ConfigError, ["grup", "group"]),
    (["algorithm=ppo", "algorithm.critic.kind=null"], ConfigError, ["token_gae", "algorithm.critic.kind=closed_form"]),
    (["algorithm.loss.clip_low=much"], ConfigError, ["clip_low", "much"]),
    (["algorithm.critic.kind=own"], ConfigError, ["group", "token_gae"]),
    (["env.tools=[price,calculat]"], ConfigError, ["calculat", "Did you mean 'calculate'"]),
    (["env.context=windw"], ConfigError, ["unknown context policy 'windw'", "Did you mean 'window'"]),
    (["env.limits=[{name: time, second: 3}]"], ConfigError, ["takes no argument 'second'", "Did you mean 'seconds'"]),
    (["env.name=tol"], ConfigError, ["tol", "Did you mean 'tool'"]),
    (["data.agent_name=env_lop"], DataError, ["env_lop", "Did you mean 'env_loop'"]),
    (["reward.function=reward_fn:scor"], ConfigError, ["scor", "Did you mean 'score'"]),
    (["data.train=[no_such.jsonl]"], DataError, ["no_such.jsonl"]),
    (["rollout.context_length=12"], DataError, ["12 tokens", "rollout.context_length", "tasks-0"]),
    (["trainer.steps=0", "rollout.group_size=-1"], ConfigError, ["trainer.steps=0", "rollout.group_size=-1"]),
    (["model.path=/no/such/model"], ConfigError, ["/no/such/model", "does not exist"]),
]


@pytest.mark.parametrize(("extra", "kind", "words"), BAD_INPUT, ids=lambda value: str(value)[:40])
def test_bad_input_is_one_clear_error_and_no_model_is_loaded(
    tmp_path: Path, model_folder: Path, extra: list[str], kind: type[AgentR1Error], words: list[str]
) -> None:
    # Weights that cannot be loaded: whoever reaches for them fails differently.
    broken = tmp_path / "broken_model"
    broken.mkdir()
    for file in model_folder.iterdir():
        content = b"not weights" if file.suffix == ".safetensors" else file.read_bytes()
        (broken / file.name).write_bytes(content)
    with pytest.raises(kind) as caught:
        commands.train(*tiny_overrides(tmp_path, broken), *extra, quiet=True)
    for word in words:
        assert word in str(caught.value)
    assert not (tmp_path / "tiny").exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"question": "?"}', ["row 1", "'prompt' is missing", "question"]),
        ("not json", ["row 1", "not JSON"]),
        ('{"prompt": [{"role": "user"}]}', ["row 1", "'content'"]),
        ('{"prompt": "?", "env_kwargs": "{"}', ["row 1", "env_kwargs"]),
        ('{"prompt": "?", "env_kwargs": {"tools": ["prise"]}}', ["prise", "Did you mean 'price'"]),
        ('{"prompt": "?", "agent_name": "loop"}', ["unknown flow 'loop'", "env_loop"]),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, model_folder: Path, line: str, words: list[str]) -> None:
    run = tiny_overrides(tmp_path, model_folder)
    with (tmp_path / "tasks.jsonl").open("r+") as file:
        first = file.readline()
        file.seek(0)
        file.truncate()
        file.write(first + line + "\n")
    with pytest.raises(DataError) as caught:
        commands.train(*run, quiet=True)
    for word in words:
        assert word in str(caught.value)


# --- the command line -------------------------------------------------------------------------------------------------


def test_dry_run_prints_the_resolved_configuration_and_starts_nothing(run: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", *run, "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "groups_per_step: 2" in result.output
    assert "6 tasks" in result.output
    assert not (tmp_path / "tiny").exists()


def test_an_error_on_the_command_line_has_no_traceback(run: list[str]) -> None:
    result = CliRunner().invoke(app, ["train", *run, "trainer.stepz=3"])
    assert result.exit_code == 2
    assert "Did you mean 'trainer.steps'" in result.output
    assert "Traceback" not in result.output


@pytest.mark.whole
def test_train_and_eval_from_the_command_line(run: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", *run, "trainer.steps=1"])
    assert result.exit_code == 0, result.output
    assert "step 1/1" in result.output
    result = CliRunner().invoke(app, ["eval", *run, "--model", str(tmp_path / "tiny" / "hf")])
    assert result.exit_code == 0, result.output
    assert "held-out tasks" in result.output
    assert "greedy" in result.output


def test_every_verb_has_help_with_an_example() -> None:
    for verb in ("train", "eval", "sft"):
        result = CliRunner().invoke(app, [verb, "--help"])
        assert result.exit_code == 0
        assert "Example" in result.output


def test_something_that_is_not_a_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"base\.yaml"):
        commands.train(str(tmp_path), quiet=True)


@pytest.mark.whole
def test_a_run_that_goes_on_keeps_the_configuration_it_goes_on_with(tmp_path: Path, model_folder: Path) -> None:
    overrides = tiny_overrides(tmp_path, model_folder)
    for steps in (1, 2):
        commands.train(*overrides, f"trainer.steps={steps}", quiet=True)
        assert from_yaml((tmp_path / "tiny" / "config.yaml").read_text()).trainer.steps == steps
    assert len((tmp_path / "tiny" / "metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # compilers warn among themselves
def test_compiled_layers_learn_what_plain_ones_learn(tmp_path: Path, model_folder: Path) -> None:
    """With a critic and a reference of their own, which are compiled too."""
    norms = []
    for compiled in ("false", "true"):
        folder = tmp_path / compiled
        folder.mkdir()
        settings = ["algorithm=ppo", "algorithm.critic.kind=own", "algorithm.kl.coefficient=0.01", "trainer.steps=2"]
        commands.train(*tiny_overrides(folder, model_folder, *settings, f"trainer.compile={compiled}"), quiet=True)
        lines = [json.loads(line) for line in (folder / "tiny" / "metrics.jsonl").read_text().splitlines()]
        norms.append([(line["policy/gradient_norm"], line["critic/gradient_norm"]) for line in lines])
        assert (lines[0].get("time/compile", 0.0) > 1) == (compiled == "true")
    assert len(norms[0]) == 2
    for plain, found in zip(*norms, strict=True):
        assert found == pytest.approx(plain, rel=1e-3)
