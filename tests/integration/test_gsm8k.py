"""The recipe gsm8k: rows, rewards, demonstrations, and a whole small run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent_r1.checks.rows import answer_episode, gold_result
from agent_r1.data.tasks import load_tasks
from agent_r1.engines import ScriptedEngine
from agent_r1.errors import DataError
from agent_r1.rewards import last_number, marked_number
from agent_r1.types import Task
from recipes.gsm8k import reward_fn
from recipes.gsm8k.data_preprocess import process_gsm8k as process
from tests.helpers import commands
from tests.helpers.recipe_runs import (
    ROOT,
    SAMPLE,
    WHOLE_DATA,
    SampleRun,
    demonstrated_turns,
    play,
    sample_run,
    task_of,
)

RECIPE = ROOT / "recipes" / "gsm8k"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SampleRun:
    return sample_run(RECIPE, tmp_path_factory.mktemp("gsm8k"))


def task(truth: str) -> Task:
    return Task(task_id="1", prompt=(), reward_model={"ground_truth": truth})


# --- rewards ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8 + 4 = 12\n#### 12", 12),
        ("####12", 12),
        ("#### 12.0\n\n", 12),
        ("#### $1,012.", 1012),
        ("#### 109,200,000", 109_200_000),
        ("#### -$5", -5),
        ("#### $-5", -5),
        ("#### 12%", 12),
        ("#### .5", 0.5),
        ("#### 11\n#### 12", 12),
        ("12", None),
        ("#### 12 eggs", None),
        ("#### 12 or 13", None),
        ("#### 1,2", None),
        ("#### 12\nThat is all.", None),
        ("####", None),
        ("", None),
    ],
)
def test_the_number_after_the_mark_stands_alone_at_the_end(text: str, number: float | None) -> None:
    assert marked_number(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [("so 10-5", 5), ("it is -5", -5), ("of $.50", 0.5), ("1,2,3", 3), ("1,200 and then", 1200), ("none", None)],
)
def test_the_last_number_of_a_text(text: str, number: float | None) -> None:
    assert last_number(text) == number


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("#### 1000", 1.0, 1.0),
        ("#### $1,000.00", 1.0, 1.0),
        ("The answer is 1,000.", 0.0, 1.0),
        ("#### 1000 eggs", 0.0, 1.0),
        ("#### 1001", 0.0, 0.0),
        ("#### -1000", 0.0, 0.0),
        ("#### 100", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_each_reward_reports_what_the_other_would_say(text: str, strict: float, flexible: float) -> None:
    scored = reward_fn.score(task("1000"), answer_episode(text))
    assert (scored["score"], scored["flexible"]) == (strict, flexible)
    scored = reward_fn.score_flexible(task("1000"), answer_episode(text))
    assert (scored["score"], scored["strict"]) == (flexible, strict)


def test_a_majority_vote_sees_one_form_of_a_number() -> None:
    answers = [reward_fn.score(task("5"), answer_episode(text))["answer"] for text in ("#### 5", "#### $5.00", "5")]
    assert answers == ["5", "5", ""]


# --- rows ------------------------------------------------------------------------------------------------------------


def test_a_problem_is_read_from_its_row(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(
        '{"question": "How many? ", "answer": "Half of 2,160 is 2160/2=<<2160/2=1080>>1,080.\\n#### 1,080"}\n'
    )
    [problem] = process.read_problems([tmp_path / "train.jsonl"])
    assert problem.question == "How many?"
    assert problem.solution == "Half of 2,160 is 2160/2=1,080."
    assert problem.answer == "1080"


@pytest.mark.parametrize(
    "row", ['{"question": "How many?"}', '{"answer": "#### 4"}', '{"question": "?", "answer": "#### four"}']
)
def test_a_row_of_something_else_is_refused(tmp_path: Path, row: str) -> None:
    (tmp_path / "train.jsonl").write_text(row + "\n")
    with pytest.raises(DataError, match="row 0 is not of GSM8K"):
        list(process.read_problems([tmp_path / "train.jsonl"]))


def test_validation_rows_are_held_out_of_the_official_training_split(run: SampleRun) -> None:
    official = {
        split: [problem.question for problem in process.read_problems([SAMPLE / f"{split}.jsonl"])]
        for split in ("train", "test")
    }
    splits = {name: [p.question for p in problems] for name, problems in process.read_splits(SAMPLE).items()}
    assert [task.prompt[-1]["content"] for task in run.plan.train_tasks] == splits["train"]
    assert [task.prompt[-1]["content"] for task in run.plan.eval_tasks] == splits["validation"]
    assert splits["test"] == official["test"]
    assert sorted(splits["train"] + splits["validation"]) == sorted(official["train"])
    assert {task.data_source for task in run.plan.eval_tasks} == {"gsm8k"}
    shown = {row["messages"][1]["content"] for row in run.demonstrations}
    assert shown == set(splits["train"])


def test_no_row_shows_its_answer_to_the_environment(run: SampleRun) -> None:
    assert {str(task.env_kwargs) for task in run.plan.train_tasks} == {"{}"}


@pytest.mark.parametrize(
    ("folder", "sizes"),
    [(SAMPLE, [48, 16]), pytest.param(WHOLE_DATA / "gsm8k", [7473, 1319], marks=pytest.mark.whole)],
    ids=["sample", "whole"],
)
def test_every_gold_answer_and_no_wrong_one_scores_full_marks(folder: Path, sizes: list[int]) -> None:
    if not folder.is_dir():
        pytest.skip("needs the whole of GSM8K")
    splits = [list(process.read_problems(sorted(folder.glob(f"{split}.jsonl*")))) for split in ("train", "test")]
    assert [len(problems) for problems in splits] == sizes
    problems = [problem for split in splits for problem in split]
    found = asyncio.run(gold_result(reward_fn.score, [task(problem.answer) for problem in problems]))
    assert found.findings == ()
    total = sum(sizes)
    assert found.seen == f"{total} of {total} gold answers (gold_answer) score full marks, 0 wrong ones do"
    for problem in problems:
        value = float(problem.answer)
        worked = process.demonstration(problem)["messages"][-1]["content"]
        assert marked_number(worked) == last_number(worked) == value
        assert marked_number(f"{problem.solution}\n#### ${value:,.2f}") == value
        assert marked_number(f"{problem.solution}\n#### {problem.answer}0") == 10 * value


# --- rollouts --------------------------------------------------------------------------------------------------------


def test_every_demonstration_solves_its_task_as_a_rollout_would_show_it(run: SampleRun) -> None:
    for row in run.demonstrations:
        [(prompt, said)] = demonstrated_turns(run.renderer, row)
        engine = ScriptedEngine([said])
        trajectory = play(run, task_of(run, row), engine)
        assert trajectory.outcome_reward == 1.0, trajectory.error
        assert [asked for asked, _ in engine.requests] == [prompt]


def test_the_data_script_writes_where_it_is_told(tmp_path: Path) -> None:
    process.write_data(tmp_path / "deep" / "data", SAMPLE)
    splits = ("train", "validation", "test")
    train, *held_out = (load_tasks([tmp_path / "deep" / "data" / f"{split}.parquet"]) for split in splits)
    assert (len(train), *map(len, held_out)) == (39, 9, 16)
    assert {row.agent_name for row in train} == {"single_step"}


@pytest.mark.whole
def test_the_recipe_checks_and_trains_from_its_own_warm_start(run: SampleRun) -> None:
    small = ["trainer.steps=2", "rollout.groups_per_step=2", "rollout.group_size=2", "sft.steps=2", "sft.batch_size=4"]
    overrides = [*run.overrides, *small, "eval.max_tasks=2", "eval.every=0", "trainer.micro_batch_tokens=2048"]
    report = commands.check(str(RECIPE), *overrides, groups=1, members=2, quiet=True)
    [gold] = [result for result in report.results if result.title == "gold answers"]
    assert gold.seen == "48 of 48 gold answers (gold_answer) score full marks, 0 wrong ones do"
    # Two steps teach nobody to answer: that all earn the same, and that answers are cut, is all there is to find.
    assert {result.title for result in report.results if result.findings} <= {"rewards", "trial episodes"}
    summary = commands.train(str(RECIPE), *overrides, quiet=True)
    assert summary.steps == 2
    runs = Path(run.plan.config.run.folder)
    assert (runs / "gsm8k_warm_start" / "hf" / "model.safetensors").is_file()
    assert (runs / "gsm8k" / "hf" / "model.safetensors").is_file()
