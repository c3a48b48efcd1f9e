"""`agent-r1 demonstrate`: a model's own episodes, sampled, chosen, written, and trained on."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import agent_r1
from agent_r1.cli import app
from agent_r1.data import read_rows
from agent_r1.errors import ConfigError, DataError, StorageError, UnknownNameError
from agent_r1.interrupts import RunInterrupted
from agent_r1.types import Episode, Task
from tests.helpers import commands
from tests.helpers.tiny_runs import tiny_overrides
from tests.integration.test_signals import Sends

RULES = """
from agent_r1.data import episode_row

seen = []


def every(task, trajectory):
    seen.append((task.task_id, trajectory.member))
    return episode_row(task, trajectory)


async def none(task, trajectory):
    return None


def number(task, trajectory):
    return 5
"""
FEW = {"tasks": 4, "samples": 3, "quiet": True}


def never(task: Task, episode: Episode) -> float:
    return 0.0


def always(task: Task, episode: Episode) -> float:
    return 1.0


@pytest.fixture
def run(tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A tiny run; its module `own_rules_of_a_test` has functions for `sft.from_episode`."""
    (tmp_path / "own_rules_of_a_test.py").write_text(RULES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_rules_of_a_test", raising=False)
    return tiny_overrides(tmp_path, model_folder)


def demonstrate(run: list[str], *overrides: str, **parts: Any) -> Any:
    recipe, *own = run
    return agent_r1.demonstrate(recipe, overrides=[*own, *overrides], **{**FEW, **parts})


def every(name: str = "every") -> str:
    return f"sft.from_episode=own_rules_of_a_test:{name}"


def test_what_is_kept_is_what_a_warm_start_trains_on(run: list[str], tmp_path: Path) -> None:
    made = demonstrate(run, every(), out=tmp_path / "new" / "own.jsonl", keep=2, reward=never)
    rows = list(read_rows(made.path))
    assert (made.tasks, made.episodes, made.solved, made.kept, len(rows)) == (4, 12, 0, 8, 8)
    assert {row["messages"][-1]["role"] for row in rows} == {"assistant"}
    assert {len(row["tools"]) for row in rows} == {2}
    assert list((tmp_path / "new").iterdir()) == [made.path]
    folder = commands.sft(*run, f"sft.data=[{made.path}]", "sft.steps=1", "run.name=warm", quiet=True)
    assert (folder / "model.safetensors").is_file()


def test_the_same_command_gives_the_same_rows_and_another_seed_others(run: list[str], tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.jsonl" for number in range(3)]
    for file, seed in zip(files, (0, 0, 1), strict=True):
        demonstrate(run, every(), f"trainer.seed={seed}", out=file)
    texts = [file.read_text() for file in files]
    assert texts[0] == texts[1] != texts[2]


def test_solved_episodes_are_kept_without_a_function(run: list[str], tmp_path: Path) -> None:
    made = demonstrate(
        run,
        "rollout.max_tokens=200",
        "data.agent_name=single_step",
        out=tmp_path / "own.parquet",
        reward=always,
        tasks=6,
        samples=8,
    )
    assert made.solved == made.episodes == 48
    assert 0 < made.kept <= 12


def test_held_out_rows_are_never_sampled(run: list[str], tmp_path: Path) -> None:
    lines = (tmp_path / "tasks.jsonl").read_text().splitlines(keepends=True)
    for name, part in (("train", lines[:2]), ("eval", lines[2:4]), ("test", lines[4:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(part))
    split = [f"data.{name}=[{tmp_path}/{name}.jsonl]" for name in ("train", "eval", "test")]
    made = demonstrate(run, *split, every(), "eval.split=test", out=tmp_path / "own.jsonl", tasks=512)
    asked = {row["messages"][0]["content"] for row in read_rows(made.path)}
    assert asked == {json.loads(line)["prompt"][0]["content"] for line in lines[:2]}
    with pytest.raises(ConfigError, match=r"data\.train is empty"):
        demonstrate(run, *split, "data.train=[]", every(), "eval.split=test", out=tmp_path / "own.jsonl")


def test_the_model_is_sampled_as_it_is_unless_a_warm_start_is_asked_for(run: list[str], tmp_path: Path) -> None:
    out = tmp_path / "own.jsonl"
    demonstrate(run, every(), out=out)
    warm = [f"sft.folder={tmp_path}/warm", f"sft.data=[{out}]", "sft.steps=1"]
    other = tmp_path / "recipe"
    other.mkdir()
    (other / "base.yaml").write_text(
        "defaults: [agent_r1, algorithm: grpo, _self_]\n"
        f"model: {{path: {tmp_path}/nowhere}}\n"
        f"data: {{train: [{tmp_path}/tasks.jsonl], agent_name: single_step}}\n"
        f"sft: {{folder: {tmp_path}/warm, data: [{out}], steps: 1, from_episode: 'own_rules_of_a_test:every'}}\n"
        "rollout: {max_tokens: 8}\n"
    )
    model = next(text for text in run if text.startswith("model.path="))
    agent_r1.demonstrate(other, overrides=[model], out=tmp_path / "second.jsonl", **FEW)
    assert not (tmp_path / "warm").exists()
    demonstrate(run, every(), *warm, out=tmp_path / "third.jsonl")
    assert (tmp_path / "warm" / "hf").is_dir()


def test_a_warm_start_is_not_made_anew_for_another_function(run: list[str], tmp_path: Path) -> None:
    demonstrate(run, every(), out=tmp_path / "own.jsonl")
    warm = [f"sft.folder={tmp_path}/warm", f"sft.data=[{tmp_path}/own.jsonl]", "sft.steps=1"]
    commands.sft(*run, *warm, quiet=True)
    commands.sft(*run, *warm, every(), quiet=True)
    assert not (tmp_path / "warm.1").exists()


# --- errors ----------------------------------------------------------------------------------------------------------


def test_nothing_to_keep_is_one_error_that_counts_and_writes_nothing(run: list[str], tmp_path: Path) -> None:
    out = tmp_path / "own.jsonl"
    with pytest.raises(DataError, match=r"12 episodes of 4 tasks: 0 solved, and none can be kept\. Sample more"):
        demonstrate(run, out=out, reward=never)
    with pytest.raises(DataError, match=r"12 solved, .*=own_rules_of_a_test:none returned None for every episode"):
        demonstrate(run, every("none"), out=out, reward=always)
    assert not out.exists()


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (every("number"), ConfigError, r"own_rules_of_a_test:number on task .* returned .* found: int"),
        (every("nothing"), UnknownNameError, r"unknown sft\.from_episode .*has no 'nothing'"),
        (every("seen"), ConfigError, r"sft\.from_episode .* is a list; expected a function"),
        ("sft.from_episode=every", UnknownNameError, "expected module:attribute"),
        ("engine=openai", ConfigError, "engine=openai takes messages .* engine=local"),
    ],
)
def test_what_cannot_work_is_said_in_words(
    run: list[str], tmp_path: Path, change: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        demonstrate(run, change, out=tmp_path / "own.jsonl")


@pytest.mark.parametrize(
    ("out", "kind", "message"),
    [
        ("own.csv", ConfigError, r"own\.csv must be a \.jsonl or \.parquet file"),
        ("own.jsonl.gz", ConfigError, r"must be a \.jsonl or \.parquet file"),
        ("folder.jsonl", ConfigError, "is a folder"),
        ("tasks.jsonl", ConfigError, "is a file of the recipe's own rows"),
        ("tasks.jsonl/own.jsonl", StorageError, "cannot be written"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_sampling(
    run: list[str], tmp_path: Path, out: str, kind: type[Exception], message: str
) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    before = (tmp_path / "tasks.jsonl").read_text()
    with pytest.raises(kind, match=message):
        demonstrate(run, f"model.path={tmp_path}/nowhere", out=tmp_path / out)
    assert (tmp_path / "tasks.jsonl").read_text() == before


@pytest.mark.parametrize("change", [{"tasks": 0}, {"samples": 0}, {"keep": 0}, {"temperature": 0}, {"samples": 1.5}])
def test_numbers_out_of_range_are_refused(run: list[str], tmp_path: Path, change: dict[str, Any]) -> None:
    [name] = change
    with pytest.raises(ConfigError, match=f"demonstrations cannot be sampled: {name}="):
        demonstrate(run, out=tmp_path / "own.jsonl", **change)


def test_several_ranks_are_refused(run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="agent-r1 demonstrate runs in one process"):
        demonstrate(run, out=tmp_path / "own.jsonl")


def test_a_signal_ends_it_and_nothing_is_written(run: list[str], tmp_path: Path) -> None:
    with pytest.raises(RunInterrupted, match="Demonstrations are written at the end, and none was"):
        demonstrate(run, out=tmp_path / "own.jsonl", reward=Sends(signal.SIGTERM, at=2))
    assert not (tmp_path / "own.jsonl").exists()


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_writes_the_file_and_one_line(run: list[str], tmp_path: Path) -> None:
    out = tmp_path / "own.jsonl"
    numbers = ["--tasks", "2", "--samples", "2", "--keep", "1"]
    done = CliRunner().invoke(app, ["demonstrate", run[0], "--out", str(out), *numbers, *run[1:], every()])
    assert done.exit_code == 0, done.output
    assert f"4 episodes of 2 tasks: 0 solved, 2 kept in {out}" in done.output
    assert len(out.read_text().splitlines()) == 2
    wrong = CliRunner().invoke(app, ["demonstrate", run[0], "--out", "own.txt", *run[1:]])
    assert (wrong.exit_code, "must be a .jsonl or .parquet file" in wrong.output) == (2, True)
