"""What earns an outcome reward: a finished answer that is right. Nothing else, and never a row without ground truth."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_r1.checks.rows import answer_episode, gold_result
from agent_r1.errors import ConfigError, DataError, EpisodeError
from agent_r1.evaluation.metrics import majority
from agent_r1.rewards import RewardFunction, Score, find_reward, in_workers, reward_functions, score_episode
from agent_r1.scaffold.templates.common import reward_fn as scaffold
from agent_r1.tools.workers.child import as_plain_result, plain
from agent_r1.tools.workers.pool import WorkerPool
from agent_r1.types import Action, Episode, Observation, Step, StopReason, Task, ToolCall, Trajectory
from recipes.gsm8k import reward_fn as gsm8k
from recipes.gsm8k_tool import reward_fn as gsm8k_tool
from recipes.hotpotqa import reward_fn as hotpotqa
from recipes.quickstart import reward_fn as quickstart
from tests.helpers import commands
from tests.helpers.tiny_runs import tiny_overrides

RIGHT: dict[str, tuple[RewardFunction, str, str]] = {
    "exact_match": (reward_functions.get("exact_match"), "12", "12"),
    "last_number": (reward_functions.get("last_number"), "12", "It is 12."),
    "quickstart": (quickstart.score, "12", "12"),
    "scaffold": (scaffold.score, "red", "red"),
    "gsm8k": (gsm8k.score, "12", "#### 12"),
    "gsm8k flexible": (gsm8k.score_flexible, "12", "so 12"),
    "gsm8k_tool": (gsm8k_tool.score, "12", "#### 12"),
    "hotpotqa": (hotpotqa.score, "Rome", "<answer>Rome</answer>"),
}
"""Every reward of ours, with a ground truth and a right answer."""


def task(truth: Any) -> Task:
    return Task(task_id="row", prompt=(), reward_model={"ground_truth": truth})


def ending(text: str, reason: StopReason = StopReason.DONE, **action: Any) -> Episode:
    step = Step(
        observation=Observation(messages=()),
        prompt_ids=(),
        action=Action(text=text, **action),
        action_ids=(),
        rollout_logprobs=(),
        reward=0.0,
        done=True,
        policy_versions=(),
    )
    return Episode(steps=(step,), stop_reason=reason)


def scored(reward: RewardFunction, truth: Any, episode: Episode) -> Score:
    return asyncio.run(score_episode(reward, task(truth), episode))


@pytest.mark.parametrize("name", RIGHT)
def test_a_finished_answer_scores(name: str) -> None:
    reward, truth, text = RIGHT[name]
    assert scored(reward, truth, ending(text)).value == 1.0


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("reason", [reason for reason in StopReason if reason is not StopReason.DONE])
def test_an_episode_that_was_cut_or_broke_has_no_answer(name: str, reason: StopReason) -> None:
    reward, truth, text = RIGHT[name]
    found = scored(reward, truth, ending(text, reason))
    assert (found.value, found.answer) == (0.0, "")


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize(
    "action",
    [{"tool_calls": (ToolCall(name="calculate", arguments={}),)}, {"parse_error": "The answer was cut by the limit."}],
    ids=["call", "malformed"],
)
def test_a_tool_call_and_a_malformed_turn_are_no_answer(name: str, action: dict[str, Any]) -> None:
    reward, truth, text = RIGHT[name]
    found = scored(reward, truth, ending(text, **action))
    assert (found.value, found.answer) == (0.0, "")


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("truth", [None, "", []])
def test_a_row_without_ground_truth_is_an_error_and_never_a_score(name: str, truth: Any) -> None:
    for text in ("", "none", "None", RIGHT[name][2]):
        with pytest.raises(EpisodeError, match="row 'row' cannot be scored: it has no ground truth"):
            scored(RIGHT[name][0], truth, ending(text))


@pytest.mark.parametrize("said", ["", "the", "!!!", "none"])
def test_exact_match_gives_nothing_to_what_only_says_nothing(said: str) -> None:
    assert scored(reward_functions.get("exact_match"), "A", ending(said)).value == 0.0


@pytest.mark.parametrize(
    ("said", "truth", "value"),
    [("3/2", "1/2", 0.0), ("1/2", "1/2", 1.0), ("3.0e5", 5, 0.0), ("3.0e5", 300_000, 1.0), ("\u22125", -5, 1.0),
     ("-$5", "-5", 1.0), ("-$5", "5", 0.0)],
)  # fmt: skip
def test_last_number_reads_the_whole_number(said: str, truth: Any, value: float) -> None:
    assert scored(reward_functions.get("last_number"), truth, ending(f"It is {said}.")).value == value


def test_exact_match_takes_any_of_a_list() -> None:
    assert scored(reward_functions.get("exact_match"), ["Rome", "Roma"], ending("roma.")).value == 1.0


def test_a_reward_that_names_no_answer_votes_with_that_of_the_episode() -> None:
    assert scored(lambda task, episode: 1.0, "x", ending("12")).answer == "12"
    assert scored(lambda task, episode: 1.0, "x", ending("12", StopReason.MAX_TOKENS)).answer == ""


# --- votes -----------------------------------------------------------------------------------------------------------


def votes(*answers: tuple[str, float]) -> list[Trajectory]:
    return [
        Trajectory(
            task_id="t", group_id=0, member=member, steps=(), outcome_reward=reward, stop_reason=StopReason.DONE,
            vote=answer,
        )
        for member, (answer, reward) in enumerate(answers)
    ]  # fmt: skip


def test_no_answer_is_no_vote() -> None:
    assert majority(votes(("", 0.0), (" ", 0.0), ("", 0.0), ("4", 1.0))) == 1.0
    assert majority(votes(("", 0.0), ("5", 0.0), ("4", 1.0), ("4", 1.0))) == 1.0
    assert majority(votes(("", 1.0), ("", 1.0))) == 0.0


@pytest.mark.parametrize(
    ("name", "forms"), [("exact_match", ("Rome", "rome.", "ROME")), ("last_number", ("5", "$5.00", "5.0"))]
)
def test_forms_of_one_answer_are_one_vote(name: str, forms: tuple[str, ...]) -> None:
    truth = forms[0]
    assert len({scored(reward_functions.get(name), truth, ending(form)).answer for form in forms}) == 1


# --- before training -------------------------------------------------------------------------------------------------


def write(path: Path, *truths: Any) -> Path:
    rows = [{"prompt": f"What? {n}", "reward_model": {"ground_truth": truth}} for n, truth in enumerate(truths)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("name", "truths", "problems"),
    [
        (
            "exact_match",
            ["Rome", None, "!!!"],
            ["'rows-1': it has no ground truth", "'rows-2': its ground truth"],
        ),
        (
            "last_number",
            ["3", "three", None],
            ["'rows-1': its ground truth 'three' is not a number", "'rows-2'"],
        ),
    ],
)
def test_a_run_refuses_rows_that_its_reward_cannot_score_before_it_trains(
    tmp_path: Path, model_folder: Path, name: str, truths: list[Any], problems: list[str]
) -> None:
    data = write(tmp_path / "rows.jsonl", *truths)
    overrides = tiny_overrides(tmp_path, model_folder, f"reward.function={name}", f"data.train=['{data}']")
    with pytest.raises(DataError, match="cannot score 2 of 3 rows") as refused:
        commands.train(*overrides, quiet=True)
    assert all(problem in str(refused.value) for problem in problems)
    report = commands.check(*overrides, quiet=True, trials=False)
    assert "cannot score 2 of 3 rows" in report.problems[0].observed


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        (Score(value=float("nan"), answer="12"), "'score' is nan; rewards must be finite"),
        (Score(value=1e300, answer="12"), "'score' is 1e\\+300"),
        (Score(value=1.0, answer="12", parts={"style": float("inf")}), "'style' is inf"),
    ],
)
def test_a_score_is_checked_like_a_number(returned: Score, problem: str) -> None:
    with pytest.raises(EpisodeError, match=problem):
        scored(lambda task, episode: returned, "12", ending("12"))


def test_a_sum_whose_weights_make_it_infinite_is_no_reward() -> None:
    large = find_reward("", [("agent_r1.rewards.outcome:no_outcome_reward", 1.0), (f"{__name__}:large_reward", 1e300)])
    with pytest.raises(EpisodeError, match="'score' is 1e\\+308"):
        scored(large, "12", ending("12"))


def large_reward(task: Task, episode: Episode) -> float:
    return 1e8


def test_a_reward_in_a_worker_process_keeps_what_it_needs() -> None:
    async def run() -> Score:
        pool = WorkerPool(size=1)
        try:
            return await score_episode(in_workers(gsm8k.score, pool, timeout=60), task(None), ending("#### 12"))
        finally:
            await pool.close()

    with pytest.raises(EpisodeError, match="it has no ground truth"):
        asyncio.run(run())


def returns_a_score(task: Task, episode: Episode) -> Score:
    return Score(value=0.5, answer="12", parts={"format": True})


class WorkersHere:
    """Sends results as worker processes do."""

    async def call(self, function: Callable[..., Any], *args: Any, timeout: float) -> Any:
        return pickle.loads(pickle.dumps(as_plain_result(function(*args))))


def test_a_reward_in_a_worker_process_may_return_a_score() -> None:
    reward = in_workers(returns_a_score, WorkersHere(), timeout=60)
    assert scored(reward, "12", ending("12")) == Score(value=0.5, answer="12", parts={"format": 1.0})


def test_a_record_inside_of_a_result_is_refused_and_does_not_become_a_mapping() -> None:
    """Such as in the state of a tool, which reads it again in its next call."""
    state = {"seen": Score(value=1.0, answer="12")}
    with pytest.raises(TypeError, match="a worker process returned a Score; only numbers, text"):
        as_plain_result(("answer", state))
    with pytest.raises(TypeError, match="returned a Score"):
        plain(state)


def own_reward(task: Task, episode: Episode) -> float:
    return float(episode.answer == task.ground_truth)


def reads_the_last_text(task: Task, episode: Episode) -> float:
    return float(episode.final_text == task.ground_truth)


def rows(*truths: Any) -> list[Task]:
    return [
        Task(task_id=str(number), prompt=(), reward_model={"ground_truth": truth})
        for number, truth in enumerate(truths)
    ]


def test_check_warns_about_rows_without_ground_truth_among_others() -> None:
    [finding] = asyncio.run(gold_result(own_reward, rows("4", None, "5", ""))).findings
    assert (finding.rule, finding.severity) == ("every row has a ground truth", "warning")
    assert "2 of 4 rows" in finding.observed
    assert "'1', '3'" in finding.observed


def test_check_warns_about_ground_truths_that_are_only_punctuation() -> None:
    [finding] = asyncio.run(gold_result(own_reward, rows("4", "!!!"))).findings
    assert (finding.rule, finding.severity) == ("a ground truth has a normal form", "warning")


def test_check_reports_rows_that_a_reward_says_it_cannot_score() -> None:
    [finding] = asyncio.run(gold_result(reward_functions.get("last_number"), rows("4", "four"))).findings
    assert (finding.rule, finding.severity) == ("every row has a ground truth", "problem")
    assert "'1' (its ground truth 'four' is not a number)" in finding.observed


def test_check_warns_about_a_reward_that_scores_cut_answers() -> None:
    [finding] = asyncio.run(gold_result(reads_the_last_text, rows("4", "5"))).findings
    assert finding.rule == "an answer that was cut does not score"
    assert "Read episode.answer" in finding.fix
    assert asyncio.run(gold_result(own_reward, rows("4", "5"))).findings == ()


def test_check_says_that_a_ground_truth_that_is_a_number_never_equals_an_answer() -> None:
    [finding] = asyncio.run(gold_result(own_reward, rows(4, 5))).findings
    assert (finding.rule, finding.severity) == ("gold answers score full marks", "warning")
    assert "The ground truth 4 is a number, and episode.answer is text: they are never equal" in finding.observed
    assert "str(task.ground_truth)" in finding.fix


def test_check_reports_a_gold_answer_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def exits(task: Task) -> str:
        raise SystemExit(0)

    monkeypatch.setitem(globals(), "gold_answer", exits)
    [finding] = asyncio.run(gold_result(own_reward, rows("4", "5"))).findings
    assert finding.rule == "gold_answer returns a text"


def test_the_answer_of_a_trial_episode_is_what_it_says() -> None:
    assert (answer_episode("x").answer, answer_episode("x", cut=True).answer) == ("x", "")


class _OneNumber:
    """Like a scalar of numpy or torch, whose `float()` may warn."""

    def item(self) -> float:
        return 0.25

    def __float__(self) -> float:
        raise AssertionError("float() of a tensor with a gradient warns")


@pytest.mark.parametrize(("value", "number"), [(True, 1.0), (1, 1.0), (_OneNumber(), 0.25)])
def test_a_reward_may_be_any_single_number(value: Any, number: float) -> None:
    assert scored(lambda task, episode: value, "12", ending("12")).value == number


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "is None (NoneType)"), ("1", "is '1' (str)"), ([1.0], "is [1.0] (list)"), ((1.0, {}), "(tuple)")],
)
def test_a_reward_that_is_no_number_is_named_with_what_to_return(value: Any, shown: str) -> None:
    with pytest.raises(EpisodeError) as caught:
        scored(lambda task, episode: value, "12", ending("12"))
    last_line = str(caught.value).strip().splitlines()[-1]
    assert last_line.startswith("ValueError: the reward's 'score' is ")
    assert shown in last_line
    assert last_line.endswith("rewards must be numbers. A reward function returns a number, or a mapping with 'score'")


def test_a_reward_part_that_is_text_is_named() -> None:
    with pytest.raises(EpisodeError, match=r"the reward's 'note' is 'good' \(str\); rewards must be numbers"):
        scored(lambda task, episode: {"score": 1.0, "note": "good"}, "12", ending("12"))


def test_an_answer_of_none_casts_no_vote() -> None:
    assert scored(lambda task, episode: {"score": 0.0, "answer": None}, "12", ending("12")).answer == ""


@pytest.mark.parametrize("success", [3, -0.5])
@pytest.mark.parametrize(
    "form", [dict, lambda **parts: Score(value=1.0, answer="", parts={"success": parts["success"]})]
)
def test_a_success_that_is_no_share_of_solved_is_refused(form: Any, success: float) -> None:
    with pytest.raises(EpisodeError, match=rf"the reward's 'success' is {success:g}: it says what counts as solved"):
        scored(lambda task, episode: form(score=1.0, success=success), "12", ending("12"))


def test_a_success_that_misses_one_by_rounding_is_solved() -> None:
    parts = [0.1] * 10 + [1e-15]
    assert scored(lambda task, episode: {"score": 1.0, "success": sum(parts)}, "12", ending("12")).parts["success"] == (
        pytest.approx(1.0)
    )


def lengths(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    """A reward function as TRL takes it."""
    return [float(len(completion)) for completion in completions]


def test_a_reward_function_for_batches_is_refused_by_its_arguments() -> None:
    with pytest.raises(ConfigError, match=r"a function of a task and an episode \(one that takes prompts and compl"):
        find_reward(f"{__name__}:lengths")
