"""The runs of docs/results.md: their plan, what is shared and skipped, and the whole of it with a tiny model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

import pytest

from agent_r1.config import load_config
from agent_r1.registry import recipe_folder
from agent_r1.runs import EvaluationRecord, RunFolder, read_evaluation, read_published, write_evaluation
from agent_r1.training.plan import check_config
from benchmarks.claims import results
from benchmarks.claims.published.plan import (
    COMPARED,
    COMPARED_ON,
    OWN_EPISODES,
    OWN_MODELS,
    RECIPES,
    WITHOUT_TOOLS,
    make_plan,
)
from benchmarks.common.recipe_runs import NO_WASTE, overrides
from tests.helpers.benchmark_jobs import Ended, ForkedCommand

MODEL = "Qwen2.5-Coder-1.5B-Instruct"
TEST = ["a", "b", "c", "d"]


# --- the plan -------------------------------------------------------------------------------------------------------


def test_every_recipe_comes_once_before_the_algorithms_and_these_before_further_seeds() -> None:
    plan = make_plan()
    count = 2 * len(RECIPES) - len(OWN_MODELS) + len(WITHOUT_TOOLS)
    assert {run.recipe for run in plan[:count]} == set(RECIPES)
    assert [run.algorithm for run in plan[:4]] == ["grpo", "react", "grpo", "react"]
    stages = [(run.seed, run.is_untrained or run.algorithm == "grpo") for run in plan]
    assert [stage for stage, _ in groupby(stages)] == [(0, True), (0, False), (1, True), (2, True)]
    compared = [run for run in plan if run.algorithm in COMPARED]
    assert {run.recipe for run in compared} == set(COMPARED_ON)
    assert [run.recipe for run in compared if run.algorithm == "gigpo"] == ["alfworld"]
    assert len({run.name(MODEL) for run in plan}) == len(plan) == 52


def test_a_recipe_with_a_model_of_its_own_has_its_own_settings_and_one_seed() -> None:
    [run] = make_plan(recipes=["nlvr"])
    assert (run.algorithm, run.seed, run.settings) == ("grpo", 0, {"algorithm": "grpo"})


def test_some_recipes_algorithms_and_seeds_can_be_chosen() -> None:
    chosen = make_plan(recipes=["hotpotqa", "games"], algorithms=["grpo", "ppo"], seeds=[0, 2])
    assert [run.title for run in chosen] == [
        *("hotpotqa, grpo, seed 0", "games, grpo, seed 0", "hotpotqa, ppo, seed 0"),
        *("hotpotqa, grpo, seed 2", "games, grpo, seed 2"),
    ]
    [changed] = make_plan(recipes=["games"], algorithms=["react"], settings={"engine.kv_memory": "9", "sft.steps": "1"})
    assert changed.settings == {"model.prepare": "null", "engine.kv_memory": "9", "rollout.concurrency": "256"}


@pytest.mark.whole
@pytest.mark.parametrize("recipe", OWN_EPISODES)
def test_own_episodes_are_sampled_with_keys_of_the_recipe(recipe: str) -> None:
    own, [run] = OWN_EPISODES[recipe], make_plan(recipes=[recipe], algorithms=["grpo"], seeds=[0])
    config = load_config(f"recipes/{recipe}", overrides({**run.settings, **own.settings, "model.path": "somewhere"}))
    with recipe_folder(Path("recipes") / recipe):
        check_config(config)
    assert config.sft.from_episode is not None


@pytest.mark.whole
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_settings_are_keys_of_the_recipe(recipe: str) -> None:
    for run in make_plan(recipes=[recipe], seeds=[0]):
        settings = run.settings if run.is_untrained else {**run.settings, **NO_WASTE}
        config = load_config(f"recipes/{recipe}", overrides({**settings, "model.path": "somewhere"}))
        with recipe_folder(Path("recipes") / recipe):
            check_config(config)
        assert config.data.test, recipe
        at_once = config.rollout.groups_per_step * config.rollout.group_size
        assert run.is_untrained or config.rollout.concurrency == at_once


# --- making them ----------------------------------------------------------------------------------------------------


class Machine:
    """Commands that write what they leave behind, and end at once; those named in `fails` fail."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.fails: set[str] = set()

    def __call__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Ended:
        given = dict(text.split("=", 1) for text in command if "=" in text)
        self.made.append(log.stem.removesuffix(f"_{MODEL}"))
        if log.stem in self.fails:
            log.write_text("some lines\nerror: the disk is full\n")
            return Ended(2)
        if command[0] == "demonstrate":
            Path(command[command.index("--out") + 1]).write_text("{}\n")
            log.write_text("4 episodes of 2 tasks: 3 solved, 2 kept\n")
        elif "--dry-run" in command:
            assert not Path(given["model.path"]).exists()
        elif command[0] == "train":
            self._train(RunFolder(Path(given["run.folder"]) / given["run.name"]), command, given)
        elif "--json" in command:
            self._evaluate(command, given)
        else:
            run = RunFolder(Path(command[1]))
            assert run.model.is_dir()
            assert read_evaluation(run.evaluation("test", "before")).solved == [0, 0, 1, 0]  # of the warm start
            write_evaluation(run.evaluation("test", "after"), record([1, 0, 1, 0]))
        return Ended(0)

    def _evaluate(self, command: Sequence[str], given: Mapping[str, str]) -> None:
        if "sft.folder" in given:
            weights = RunFolder(Path(given["sft.folder"])).model
            weights.mkdir(parents=True, exist_ok=True)
            (weights / "model.safetensors").write_bytes(b"weights")
        solved = {"tasks": TEST, "sources": ["x"] * 4, "solved": [0.0, 0.0, 1.0, 0.0]}
        figures = {"metrics": {"m": 0.25}, "intervals": {"m": [0.1, 0.4]}}
        told = {"recipe": command[1], "model": None, "split": "test", "overrides": list(map("=".join, given.items()))}
        told["baseline"] = "react" if "--baseline" in command else None
        Path(command[3]).write_text(json.dumps({**solved, **figures, **told}))

    def _train(self, run: RunFolder, command: Sequence[str], given: Mapping[str, str]) -> None:
        assert not run.path.exists()
        assert given["model.path"].endswith("_warm_start/hf")
        assert given["trainer.keep_checkpoints"] == "0"
        run.model.mkdir(parents=True)
        run.config.write_text(f"recipe: {command[1]}\nrun: {{name: {run.path.name}}}\nmodel: {{path: m}}\n")
        run.metrics.write_text('{"step": 1, "reward/success": 0.5, "time/step": 60.0}\n')
        run.write_summary({"steps": 1, "algorithm": given["algorithm"], "base_model": "somewhere"})


def record(solved: list[float]) -> EvaluationRecord:
    return EvaluationRecord(
        split="test", model="m", step=1, tasks=TEST, sources=["x"] * 4, solved=solved, metrics={"m": 0.5}, intervals={}
    )


@pytest.fixture
def machine() -> Machine:
    return Machine()


def make(folder: Path, machine: Machine, *arguments: str) -> int:
    """The first runs of one recipe, unless the arguments say which."""
    places = ["--model", str(folder), "--work", str(folder / "work"), "--out", str(folder / "out")]
    return results.main(["--only", "hotpotqa", "--seeds", "0", *places, *arguments], start=machine)


FIRST = ["warm_start", "hotpotqa_grpo_0_train", "hotpotqa_grpo_0_eval", "react"]


def logs_of(*names: str) -> list[str]:
    """The names of logs, without the model's."""
    return [name.replace(f"_{MODEL}", "") for name in names]


def test_what_is_published_is_never_repeated_and_its_weights_are_gone(
    tmp_path: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(tmp_path, machine, "--algorithms", "react", "grpo") == 0
    assert logs_of(*machine.made) == FIRST
    printed = capsys.readouterr().out
    assert "hotpotqa, grpo, seed 0, evaluation: 25.0% -> 50.0% of 4 test tasks solved" in printed
    assert "hotpotqa, react: 25.0% of 4 test tasks solved" in printed
    run, react = read_published(tmp_path / "out")
    assert (run.name, run.model, run.algorithm) == (f"hotpotqa_grpo_0_{MODEL}", MODEL, "grpo")
    assert (react.name, react.baseline) == (f"hotpotqa_react_{MODEL}", "react")
    left = RunFolder(tmp_path / "work" / MODEL / "hotpotqa" / run.name)
    assert left.metrics.is_file()
    assert not left.model.exists()

    assert make(tmp_path, machine, "--algorithms", "react", "grpo", "ppo") == 0  # from the same warm start
    assert logs_of(*machine.made[4:]) == ["hotpotqa_ppo_0_train", "hotpotqa_ppo_0_eval"]
    capsys.readouterr()
    assert make(tmp_path, machine, "--list") == 0
    printed = capsys.readouterr().out
    assert " 50.0%   hotpotqa, ppo, seed 0 " in printed
    assert "missing  hotpotqa, rloo, seed 0 " in printed
    assert "6 runs, 3 missing in" in printed
    assert len(machine.made) == 6


def test_a_warm_start_on_own_episodes_waits_for_them_and_makes_them_once(
    tmp_path: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ["--only", "gsm8k_tool", "--algorithms", "no_tools"]
    assert make(tmp_path, machine, *chosen, "grpo") == 0
    assert logs_of(*machine.made) == [
        "own_episodes",
        "warm_start",
        *(f"gsm8k_tool_grpo_0_{part}" for part in ("train", "eval")),
        "no_tools",
    ]
    assert "demonstrations of its own: 4 episodes of 2 tasks: 3 solved, 2 kept, 0 s" in capsys.readouterr().out
    untrained = next(found for found in read_published(tmp_path / "out") if found.kind == "evaluation")
    assert (untrained.title, untrained.baseline) == ("no tools", None)
    assert untrained.name == f"gsm8k_tool_no_tools_{MODEL}"
    assert "env=gsm8k_plain" in untrained.commands[0]
    assert "--baseline" not in untrained.commands[0]
    place = tmp_path / "work" / MODEL / "gsm8k_tool"
    given = json.loads((place / "warm_start.json").read_text())["overrides"]
    [episodes] = place.glob("own_episodes_*.jsonl")
    assert f"sft.data=[{episodes}]" in given
    assert make(tmp_path, machine, *chosen, "ppo", "grpo", "--seeds", "0", "1") == 0
    assert machine.made.count("own_episodes") == machine.made.count("warm_start") == 1
    assert make(tmp_path, machine, *chosen, "grpo", "--seeds", "2", "--set", "rollout.top_k=5") == 0  # other episodes
    assert machine.made.count("own_episodes") == machine.made.count("warm_start") == 2


def test_the_data_of_all_recipes_can_be_made_before_there_is_a_model(tmp_path: Path, machine: Machine) -> None:
    places = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    assert results.main(["--data-only", "--only", "hotpotqa", "games", *places], start=machine) == 0
    assert machine.made == ["data", "data"]
    assert sorted(path.name for path in (tmp_path / "work" / MODEL).iterdir()) == ["games", "hotpotqa"]


def test_an_interrupted_run_begins_again(tmp_path: Path, machine: Machine) -> None:
    left = tmp_path / "work" / MODEL / "hotpotqa" / f"hotpotqa_grpo_0_{MODEL}"
    left.mkdir(parents=True)
    (left / "metrics.jsonl").write_text('{"step": 1}\n')
    assert make(tmp_path, machine, "--algorithms", "grpo") == 0
    assert logs_of(*machine.made) == FIRST[:3]


def test_a_warm_start_of_other_settings_is_made_again(tmp_path: Path, machine: Machine) -> None:
    for algorithm, steps in (("grpo", "7"), ("ppo", "7"), ("rloo", "8")):
        assert make(tmp_path, machine, "--algorithms", algorithm, "--set", f"sft.steps={steps}") == 0
    assert machine.made.count("warm_start") == 2


def test_recipes_have_warm_starts_of_their_own_and_wait_for_no_other(tmp_path: Path, machine: Machine) -> None:
    assert make(tmp_path, machine, "--only", "alfworld", "games", "--algorithms", "grpo", "--jobs", "2") == 0
    assert logs_of(*machine.made[:2]) == ["warm_start", "warm_start"]
    assert {found.recipe for found in read_published(tmp_path / "out")} == {"alfworld", "games"}


def test_a_failed_run_is_reported_with_its_last_line_and_does_not_stop_the_others(
    tmp_path: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.fails = {f"hotpotqa_grpo_0_{MODEL}_train"}
    assert make(tmp_path, machine, "--algorithms", "grpo", "ppo") == 1
    printed = capsys.readouterr().out
    assert "hotpotqa, grpo, seed 0, evaluation: not started, because of: hotpotqa, grpo, seed 0, training" in printed
    assert printed.endswith("failed: hotpotqa, grpo, seed 0, training: error: the disk is full\n")
    assert [found.algorithm for found in read_published(tmp_path / "out")] == ["ppo"]
    machine.fails = {"warm_start"}
    assert make(tmp_path, machine, "--algorithms", "grpo", "--set", "sft.steps=3") == 1
    assert "training: not started, because of: hotpotqa, warm start" in capsys.readouterr().out
    machine.fails = set()
    assert make(tmp_path, machine, "--algorithms", "grpo") == 0


def test_an_untrained_figure_of_other_tasks_is_named(
    tmp_path: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path, machine, "--algorithms", "react")
    file = tmp_path / "out" / f"hotpotqa_react_{MODEL}.json"
    file.write_text(file.read_text().replace('"d"', '"e"'))
    make(tmp_path, machine, "--algorithms", "grpo")
    assert f"hotpotqa_react_{MODEL} is of other tasks: delete it" in capsys.readouterr().out


def test_a_model_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--model", str(tmp_path / "none")], ["--model", str(tmp_path), "--set", "sft.steps"]):
        with pytest.raises(SystemExit):
            results.main(arguments)
    printed = capsys.readouterr().err
    for text in ("which model is to be trained?", "there is no such folder", "expected KEY=VALUE"):
        assert text in printed


# --- the whole ------------------------------------------------------------------------------------------------------


@pytest.mark.whole
def test_the_smoke_runs_publish_a_tiny_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_R1_DATA", "restored after the test: the command sets it")
    chosen = ["--smoke", "--only", "hotpotqa", "--seeds", "0", "--algorithms", "react", "grpo"]
    chosen += ["--work", str(tmp_path)]
    assert results.main([*chosen, "--data-only"], start=ForkedCommand) == 0
    assert [path.name for path in tmp_path.glob("tiny/hotpotqa/*/train.parquet")] == ["train.parquet"]
    assert results.main(chosen, start=ForkedCommand) == 0
    run, react = read_published(tmp_path / "published")
    assert (run.recipe, run.model, run.algorithm, run.steps, run.warm_start) == ("hotpotqa", "tiny", "grpo", 1, True)
    assert run.tasks == react.tasks
    assert run.before is not None
    assert run.before["solved"] == json.loads((tmp_path / "tiny/hotpotqa/warm_start.json").read_text())["solved"]
    assert not any(str(tmp_path) in command for command in (*run.commands, *react.commands))
