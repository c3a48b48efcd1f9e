"""The study of what works: its plan, how it resumes, what it reports, and the whole of it with a tiny model."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agent_r1.config import config_differences, load_config
from agent_r1.errors import DataError
from agent_r1.registry import recipe_folder
from agent_r1.runs import EvaluationRecord, RunFolder, write_evaluation
from agent_r1.training.plan import check_config
from benchmarks.claims import what_works
from benchmarks.claims.study.plan import QUESTIONS, TASKS, make_plan, variants_of
from benchmarks.claims.study.results import read_results, results_of
from benchmarks.common import forks as common_forks
from benchmarks.common.processes import Job, run_jobs
from tests.helpers.benchmark_jobs import Ended, ForkedCommand

MODEL = "SmolLM2-135M-Instruct"
VALIDATION = ["a", "b", "c", "d"]


# --- the plan -------------------------------------------------------------------------------------------------------


def test_one_seed_of_everything_comes_before_the_next_seed() -> None:
    plan = make_plan()
    seeds = [run.seed for run in plan]
    assert seeds == sorted(seeds)
    assert Counter(seeds) == {0: 34, 1: 34, 2: 34}
    assert len({run.key for run in plan}) == len(plan)
    assert [run.variant.name for run in plan[:10:2]] == ["base", "rloo", "step_grpo", "gigpo", "steppo"]
    assert {run.task for run in plan[:2]} == set(TASKS)


def test_all_runs_have_as_many_episodes() -> None:
    assert {run.episodes for run in make_plan()} == {3840}
    assert {run.episodes for run in make_plan(settings={"trainer.steps": "2", "rollout.groups_per_step": "8"})} == {128}
    with pytest.raises(SystemExit, match="large_groups would have 480 episodes and the base 720"):
        make_plan(settings={"rollout.groups_per_step": "3", "rollout.group_size": "16"})


def test_every_question_has_variants_and_a_reference_in_each_task() -> None:
    for task in TASKS:
        names = {variant.name for variant in variants_of(task)}
        assert {question.reference for question in QUESTIONS} <= names
    asked = {variant.question for variant in variants_of("alfworld")}
    assert asked == {question.name for question in QUESTIONS}


def test_a_variant_that_the_settings_make_the_base_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"with these settings temperature_0.7 is the base"):
        make_plan(settings={"rollout.temperature": "0.7"})
    with pytest.raises(SystemExit, match="unknown variant grpo of hotpotqa; known: base, rloo, step_grpo"):
        make_plan(tasks=["hotpotqa"], variants=["grpo"])


@pytest.mark.whole
@pytest.mark.parametrize(("task", "variants"), [("alfworld", []), ("hotpotqa", ["base", "low_rate", "critic"])])
def test_each_variant_differs_from_the_base_in_the_keys_that_it_names_and_in_no_other(
    task: str, variants: list[str]
) -> None:
    base, *others = make_plan(tasks=[task], variants=variants, seeds=[0])
    plain = load_config(f"recipes/{task}", base.settings)
    for run in others:
        config = load_config(f"recipes/{task}", run.settings)
        with recipe_folder(Path("recipes") / task):
            check_config(config)
        found = config_differences(plain, config)
        differing = [line.partition(":")[0] for line in found]
        named = run.variant.changes
        assert not [key for key in differing if not any(f"{key}.".startswith(f"{name}.") for name in named)], run.name
        assert not [name for name in named if not any(f"{key}.".startswith(f"{name}.") for key in differing)], run.name


# --- resuming -------------------------------------------------------------------------------------------------------


class Machine:
    """Commands that write what runs leave behind, and end at once; those named in `fails` fail."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.fails: set[str] = set()

    def __call__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Ended:
        given = dict(text.split("=", 1) for text in command if "=" in text)
        name = given.get("run.name", "warm start")
        self.made.append(f"{Path(command[1]).name} {name}")
        if name in self.fails:
            log.write_text("some lines\nerror: the disk is full\n")
            return Ended(2)
        if command[0] == "eval":
            weights = RunFolder(Path(given["sft.folder"])).model
            weights.mkdir(parents=True, exist_ok=True)
            (weights / "model.safetensors").write_bytes(b"weights")
            record = {"tasks": VALIDATION, "sources": ["x"] * 4, "solved": [0.0, 0.0, 1.0, 0.0], "metrics": {"m": 0.25}}
            overrides = [text for text in command if "=" in text]
            Path(command[3]).write_text(json.dumps({**record, "overrides": overrides}))
        else:
            self._train(RunFolder(Path(given["run.folder"]) / name), given)
        return Ended(0)

    def _train(self, run: RunFolder, given: Mapping[str, str]) -> None:
        assert not run.path.exists()
        assert given["model.path"].endswith("_warm_start/hf")
        run.path.mkdir()
        (run.path / "checkpoint").write_bytes(b"large")
        lines = [{"step": step, "reward/success": step / 8, "time/step": 3.0} for step in (1, 2)]
        run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
        record = EvaluationRecord(
            split="validation",
            model="m",
            step=2,
            tasks=VALIDATION,
            sources=["x"] * 4,
            solved=[1.0, 0.0, 1.0, 0.0],
            metrics={"eval/all/greedy": 0.5},
            intervals={},
        )
        write_evaluation(run.evaluation("validation", "after"), record)


@pytest.fixture
def machine() -> Machine:
    return Machine()


def study(folder: Path, machine: Machine, *arguments: str) -> int:
    chosen = ["--only", "hotpotqa", "--variants", "base", "gigpo", "--seeds", "0", "1", "--work", str(folder)]
    return what_works.main([*chosen, *arguments], start=machine)


def test_a_finished_run_is_one_line_and_is_not_repeated(
    tmp_path: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert study(tmp_path, machine, "--seeds", "0") == 0
    assert machine.made == ["hotpotqa warm start", "hotpotqa base_0", "hotpotqa gigpo_0"]
    found = results_of(tmp_path / "results", "hotpotqa", MODEL)
    [start] = found.starts.values()
    run = found.runs["hotpotqa", "gigpo", 0]
    assert (run.success, run.minutes, run.start) == (0.5, 0.1, start.digest)
    assert run.settings["algorithm"] == "gigpo"
    assert run.curves == {"reward/success": [[1, 0.125], [2, 0.25]]}
    assert found.solved(run) == {"a": 1, "b": 0, "c": 1, "d": 0}
    assert not (tmp_path / MODEL / "hotpotqa" / "gigpo_0").exists()  # its weights are gone
    capsys.readouterr()
    assert study(tmp_path, machine, "--list") == 0
    assert "4 runs of SmolLM2-135M-Instruct, 2 missing" in capsys.readouterr().out
    assert study(tmp_path, machine) == 0
    assert machine.made[3:] == ["hotpotqa base_1", "hotpotqa gigpo_1"]
    assert "25.0% -> 50.0%" in capsys.readouterr().out


def test_an_interrupted_run_begins_again(tmp_path: Path, machine: Machine) -> None:
    study(tmp_path, machine, "--seeds", "0", "--variants", "base")
    left = tmp_path / MODEL / "hotpotqa" / "base_1"
    left.mkdir()
    (left / "metrics.jsonl").write_text('{"step": 1}\n')
    file = tmp_path / "results" / f"hotpotqa_{MODEL}.jsonl"
    whole = file.read_text()
    file.write_text(whole + '{"kind": "run", "task": "hotpo')  # the process was killed while it wrote
    assert study(tmp_path, machine, "--variants", "base") == 0
    assert machine.made[2:] == ["hotpotqa base_1"]
    assert file.read_text().startswith(whole)
    assert sorted(results_of(file.parent, "hotpotqa", MODEL).runs) == [("hotpotqa", "base", 0), ("hotpotqa", "base", 1)]


def test_a_machine_without_the_warm_start_makes_another_and_keeps_the_results(
    tmp_path: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    study(tmp_path / "first", machine, "--seeds", "0")
    assert study(tmp_path / "second", machine, "--out", str(tmp_path / "first" / "results")) == 0
    assert machine.made[3:] == ["hotpotqa warm start", "hotpotqa base_1", "hotpotqa gigpo_1"]
    assert "another copy" not in capsys.readouterr().out  # its weights are the same, byte for byte
    [found] = read_results(tmp_path / "first" / "results")
    assert (len(found.starts), len(found.runs)) == (1, 4)


def test_another_model_or_another_warm_start_is_not_taken_for_this_one(tmp_path: Path, machine: Machine) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    models = [["--model", str(tmp_path / name)] for name in ("first", "second")]
    for more in (models[0], models[0], models[1], [*models[1], "--set", "sft.steps=7"]):
        study(tmp_path, machine, "--start-only", *more)
    assert machine.made == ["hotpotqa warm start"] * 3
    with pytest.raises(SystemExit, match="third: there is no such folder"):
        study(tmp_path, machine, "--model", str(tmp_path / "third"))


def test_a_failed_run_is_reported_and_does_not_stop_the_others(
    tmp_path: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.fails = {"base_0"}
    assert study(tmp_path, machine, "--seeds", "0") == 1
    printed = capsys.readouterr().out
    assert "hotpotqa, gigpo, seed 0: 25.0% -> 50.0%" in printed
    assert "hotpotqa, base, seed 0 FAILED: exit code 2; the end of" in printed
    assert printed.endswith("failed: hotpotqa, base, seed 0: error: the disk is full\n")
    machine.fails = set()
    assert study(tmp_path, machine, "--seeds", "0") == 0
    assert machine.made[-1] == "hotpotqa base_0"


def test_without_a_warm_start_the_runs_of_the_other_task_are_made(tmp_path: Path, machine: Machine) -> None:
    def one_fails(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Ended:
        log.write_text("error: no data\n")
        return Ended(1) if "alfworld" in command[1] else machine(command, log, environment)

    arguments = ["--variants", "base", "--seeds", "0", "--work", str(tmp_path)]
    assert what_works.main(arguments, start=one_fails) == 1
    assert machine.made == ["hotpotqa warm start", "hotpotqa base_0"]


def test_results_of_other_settings_are_refused(tmp_path: Path, machine: Machine) -> None:
    study(tmp_path, machine, "--seeds", "0")
    with pytest.raises(SystemExit, match=r"base_0 with trainer.steps=15, and this one has 3; .* another --out"):
        study(tmp_path, machine, "--set", "trainer.steps=3")


def test_a_line_that_is_no_result_is_named(tmp_path: Path) -> None:
    (tmp_path / "hotpotqa_m.jsonl").write_text('{"kind": "run", "task": "hotpotqa"}\n')
    with pytest.raises(DataError, match=r"hotpotqa_m.jsonl, line 1 is not a result of the study .* delete the line"):
        read_results(tmp_path)


# --- processes ------------------------------------------------------------------------------------------------------


def job(name: str, folder: Path, **given: object) -> Job:
    return Job(name=name, command=[], log=folder / "log", finish=lambda seconds: "done", **given)


def test_an_interrupt_ends_the_processes(tmp_path: Path) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "600"]))
        return started[-1]

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs([job("a", tmp_path), job("b", tmp_path, begin=interrupt)], at_once=2, say=print, start=start)
    assert [process.returncode for process in started] == [-15]


def test_one_job_trains_while_others_do_not(tmp_path: Path) -> None:
    busy, most = set[str](), list[int]()

    class Process(Ended):
        """Ends when it is asked for the third time."""

        def __init__(self, name: str) -> None:
            super().__init__(0)
            self.name, self.left = name, 3
            busy.add(name)
            most.append(sum(one.startswith("train") for one in busy))

        def poll(self) -> int | None:  # type: ignore[override]
            self.left -= 1
            if self.left <= 0:
                busy.discard(self.name)
            return 0 if self.left <= 0 else None

    started: list[str] = []

    def start(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Process:
        started.append(command[0])
        return Process(command[0])

    jobs = [
        replace(job(name, tmp_path), command=[name], trains=name.startswith("train"), needs=needs)
        for name, needs in (("train 1", []), ("train 2", []), ("eval 1", ["train 1"]), ("eval 2", []))
    ]
    assert run_jobs(jobs, at_once=2, trainings=1, say=lambda text: None, start=start) == []
    assert started == ["train 1", "eval 2", "train 2", "eval 1"]
    assert max(most) == 1


def test_no_run_starts_when_the_time_is_up(tmp_path: Path) -> None:
    said: list[str] = []
    jobs = [job("a", tmp_path), job("b", tmp_path)]
    assert run_jobs(jobs, at_once=1, say=said.append, deadline=time.monotonic() - 1, start=Machine()) == []
    assert said == ["the time is up: 2 were not started; run the same command again"]


@pytest.mark.whole
def test_a_forked_command_has_its_log_its_exit_code_and_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common_forks, "PRELOADED", [])
    for name in os.environ:
        monkeypatch.setenv(name, os.environ[name])  # a fork sets the environment of this process
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "restored")

    def start(*command: str) -> common_forks.ForkedProcess:
        return common_forks.ForkedProcess(command, tmp_path / "log", os.environ)

    assert start("train", "--help").wait(60) == 0
    assert "resumes from it" in (tmp_path / "log").read_text()
    assert start("train", "no_such_recipe").wait(60) == 2
    assert "no_such_recipe" in (tmp_path / "log").read_text()
    waiting = start("train", "recipes/quickstart", "--dry-run")
    assert waiting.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(0.0)
    waiting.kill()
    assert waiting.wait(60) == -9


# --- the whole ------------------------------------------------------------------------------------------------------


@pytest.mark.whole
def test_the_smoke_study_trains_a_tiny_model_and_leaves_results_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_R1_DATA", "restored after the test: the study sets it")
    chosen = ["--smoke", "--only", "hotpotqa", "--seeds", "0", "--variants", "revisit", "--work", str(tmp_path)]
    assert what_works.main(chosen, start=ForkedCommand) == 0
    [found] = read_results(tmp_path / "results")
    [start], [run] = found.starts.values(), found.runs.values()
    assert run.key == ("hotpotqa", "revisit", 0)
    assert len(run.solved) == len(start.tasks) == 3
    assert run.curves["reward/outcome"]
    assert run.seconds > 60 * run.minutes >= 0
    assert not (tmp_path / "tiny" / "hotpotqa" / "revisit_0").exists()
