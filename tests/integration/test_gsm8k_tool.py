"""The recipe gsm8k_tool: its tools and what they pay, demonstrations made of annotations, a whole small run."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_r1.checks.rows import answer_episode, gold_result
from agent_r1.engines import ScriptedEngine
from agent_r1.envs import ToolEnv
from agent_r1.errors import DataError
from agent_r1.flows import AgentEnvLoop, try_flow
from agent_r1.tools import CallOutcome, ToolContext, calculate, run_call, try_tool
from agent_r1.tools.builtin.calculator import evaluate
from agent_r1.types import Action, Episode, StopReason, Task, ToolCall
from recipes.gsm8k.data_preprocess import process_gsm8k as gsm8k
from recipes.gsm8k_tool import own_words, plain_env, prompts, reward_fn, tools
from recipes.gsm8k_tool.data_preprocess import process_gsm8k_tool as process
from tests.helpers import commands
from tests.helpers.fuzzing import cases
from tests.helpers.recipe_runs import ROOT, SAMPLE, WHOLE_DATA, SampleRun, demonstrated_turns, play, sample_run, task_of

RECIPE = ROOT / "recipes" / "gsm8k_tool"
CLIPS = gsm8k.Problem(
    question="Natalia sold 48 clips in April and half as many in May. How many clips did she sell?",
    worked="She sold 48/2 = <<48/2=24>>24 clips in May.\nThat is 48+24 = <<48+24=72>>72 clips.",
    answer="72",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SampleRun:
    return sample_run(RECIPE, tmp_path_factory.mktemp("gsm8k_tool"))


def task(problem: gsm8k.Problem = CLIPS) -> Task:
    row = process.task_row(problem, "train", 0)
    return Task(
        task_id="clips", prompt=tuple(row["prompt"]), reward_model=row["reward_model"], env_kwargs=row["env_kwargs"]
    )


def outcomes(calls: list[tuple[str, Any]], problem: gsm8k.Problem = CLIPS) -> list[CallOutcome]:
    """What becomes of calls made one after another in an episode: ("calculate", "48/2"), ("check_answer", 72)."""
    toolbox = {tool.name: tool for tool in (tools.Calculator(), tools.check_answer)}
    context = ToolContext(task=task(problem))
    named = {"calculate": "expression", "check_answer": "answer"}

    async def make() -> list[CallOutcome]:
        return [
            await run_call(toolbox, ToolCall(name=name, arguments={named[name]: given}, call_id="1"), context)
            for name, given in calls
        ]

    return asyncio.run(make())


def rewards(*expressions: str) -> list[float]:
    return [outcome.reward for outcome in outcomes([("calculate", expression) for expression in expressions])]


# --- process rewards -------------------------------------------------------------------------------------------------


def test_the_calculator_looks_and_answers_as_the_librarys() -> None:
    mine = tools.Calculator()
    assert (mine.name, mine.tool_schema) == (calculate.name, calculate.tool_schema)
    for expression in ("48/2", "1/3", "48/", "2**9", ""):
        own = outcomes([("calculate", expression)])[0]
        librarys = try_tool(calculate, {"expression": expression})
        assert (own.response.text, own.status) == (librarys.response.text, librarys.status)


def test_each_step_of_the_solution_is_paid_once() -> None:
    assert rewards("48/2", "48+24") == [0.1, 0.1]
    assert rewards("48/2", "48/2", "24*1", "48+24", "24+48") == [0.1, 0.0, 0.0, 0.1, 0.0]


def test_another_way_to_the_same_result_is_paid_too() -> None:
    assert rewards("48 * 0.5", "24 * 3") == [0.1, 0.1]


def test_the_way_to_the_answer_earns_the_same_in_one_calculation_or_in_several() -> None:
    assert sum(rewards("48 + 48 / 2")) == sum(rewards("48/2", "48+24")) == tools.PROGRESS_REWARD
    assert rewards("48 + 48 / 2", "48/2") == [0.2, 0.0]  # nothing is left to earn


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("48+1", "leads nowhere"),
        ("48*1", "nothing new"),
        ("20+4", "numbers from nowhere"),
        ("2*12", "none of the question's numbers"),
        ("24", "not a calculation"),
        ("-24", "not a calculation"),
        ("48/0", "does not work out"),
        ("48/", "does not work out"),
    ],
)
def test_what_is_not_useful_earns_nothing(expression: str, why: str) -> None:
    assert rewards(expression) == [0.0], why


def test_a_number_that_was_only_written_is_not_known_from_then_on() -> None:
    assert rewards("37", "37+35") == [0.0, 0.0]


def test_trying_everything_does_not_pay() -> None:
    tries = [f"48+{number}" for number in range(1, tools.MAX_PAID_CALLS + 1)]
    assert rewards(*tries, "48/2", "48+24") == [0.0] * (tools.MAX_PAID_CALLS + 2)
    assert rewards(*["48/"] * tools.MAX_PAID_CALLS, "48/2")[-1] == 0.0


@settings(max_examples=cases(60), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["48", "24", "2", "72", "12", "3"]), st.sampled_from("+-*/"), st.integers(1, 99)),
        max_size=30,
    )
)
def test_an_episode_cannot_earn_more_than_the_whole_way(made: list[tuple[str, str, int]]) -> None:
    assert sum(rewards(*(f"{left}{sign}{right}" for left, sign, right in made))) <= tools.PROGRESS_REWARD + 1e-9


def test_numbers_are_known_from_the_question_earlier_results_and_everyday_life() -> None:
    known = {"given": [20.0, 150.0], "earlier": [37.5], "solution": [30.0, 412.5]}
    assert tools.is_useful("150*0.2", 30.0, **known)
    assert tools.is_useful("150*20/100", 30.0, **known)
    assert tools.is_useful("37.5*11", 412.5, **known)
    assert not tools.is_useful("37.5*11", 412.5, given=[20.0], earlier=[], solution=[412.5])
    assert tools.numbers_in("1,200 clips at $0.50, 15% off, 3-day sale") == [1200.0, 0.5, 15.0, 3.0]


def test_a_check_earns_nothing() -> None:
    assert [outcome.reward for outcome in outcomes([("check_answer", 72), ("check_answer", 71)])] == [0.0, 0.0]


# --- the checker leaks nothing ---------------------------------------------------------------------------------------


def test_the_checker_says_whether_an_answer_was_calculated() -> None:
    calls = [("check_answer", 72), ("calculate", "48+24"), ("check_answer", 72), ("check_answer", "many")]
    texts = [outcome.response.text for outcome in outcomes(calls)]
    assert texts[0] == "You have not calculated 72. To give it as the answer, end with #### 72"
    assert texts[2] == "You calculated 72. To give it as the answer, end with #### 72"
    assert "answer" in texts[3]
    written = outcomes([("calculate", "72"), ("check_answer", 72)])
    assert written[1].response.text.startswith("You have not calculated 72.")
    assert outcomes([("check_answer", float("nan"))])[0].status == "error"


@settings(max_examples=cases(60), deadline=None)
@given(
    gold=st.integers(-200, 200),
    other=st.integers(-200, 200),
    calls=st.lists(
        st.one_of(
            st.tuples(st.just("check_answer"), st.one_of(st.integers(-200, 200), st.just("x"))),
            st.tuples(st.just("calculate"), st.sampled_from(["48/2", "48+24", "48*", "72-1"])),
        ),
        max_size=6,
    ),
)
def test_what_the_tools_say_does_not_depend_on_the_gold_answer(
    gold: int, other: int, calls: list[tuple[str, Any]]
) -> None:
    def said(answer: int) -> list[tuple[str, str]]:
        worked = f"It is <<48+{answer}={48 + answer}>>."
        problem = gsm8k.Problem(question=CLIPS.question, worked=worked, answer=str(answer))
        return [
            (outcome.response.text, outcome.status) for outcome in outcomes([*calls, ("check_answer", gold)], problem)
        ]

    assert said(gold) == said(other)


# --- the outcome -----------------------------------------------------------------------------------------------------


def episode(*replies: str, max_steps: int = 5) -> Episode:
    toolbox = [tools.Calculator(), tools.check_answer]
    return try_flow(AgentEnvLoop, task(), replies, make_env=lambda row: ToolEnv(tools=toolbox), max_steps=max_steps)


CHECK = '<tool_call>{"name": "check_answer", "arguments": {"answer": 72}}</tool_call>'


def test_an_answer_counts_and_a_number_in_a_call_does_not() -> None:
    assert reward_fn.score(task(), episode(CHECK, "So.\n#### 72")) == {"score": 1.0, "flexible": 1.0, "answer": "72"}
    assert reward_fn.score(task(), episode("It is 72."))["flexible"] == 1.0
    cut = episode(CHECK, CHECK, max_steps=2)
    assert cut.stop_reason is StopReason.MAX_STEPS
    assert reward_fn.score(task(), cut) == {"score": 0.0, "flexible": 0.0, "answer": ""}
    malformed = episode('<tool_call>{"name": "calculate"\n#### 72', max_steps=1)
    assert reward_fn.score(task(), malformed)["score"] == 0.0
    assert reward_fn.score(task(), episode("#### 0"))["answer"] == "0"


@pytest.mark.parametrize(
    ("answer", "score"), [("72", 1.0), ("$72", 1.0), ("So.\n#### 72", 1.0), ("71", 0.0), ("72 or 71", 0.0), ("0", 0.0)]
)
def test_a_number_alone_will_do_where_the_format_marks_the_answer(answer: str, score: float) -> None:
    [step] = episode(f"Final Answer: {answer}").steps
    marked = replace(step, action=replace(step.action, final_answer=answer))
    assert reward_fn.score(task(), Episode(steps=(marked,), stop_reason=StopReason.DONE))["score"] == score


def test_what_a_call_earned_stays_on_its_step() -> None:
    call = '<tool_call>{"name": "calculate", "arguments": {"expression": "48/2"}}</tool_call>'
    played = episode(call, CHECK, "#### 72")
    assert [step.reward for step in played.steps] == [0.1, 0.0, 0.0]


# --- demonstrations --------------------------------------------------------------------------------------------------


def test_annotations_become_calls_with_the_words_before_them() -> None:
    steps, rest = process.calculations("She sold 48/2 = $<<48/2=24>>24. Then $24+48=<<24+48=72>>72.")
    assert [(step.words, step.expression) for step in steps] == [
        ("She sold 48/2 =", "48/2"),
        ("$24. Then $24+48=", "24+48"),
    ]
    assert rest == "72."
    assert process.calculations("No calculation.") == ([], "No calculation.")


def test_a_demonstration_is_the_solution_told_with_calls() -> None:
    row = asyncio.run(process.demonstration(CLIPS, check=True))
    assert row is not None
    said = [
        (message["content"], [call["function"] for call in message.get("tool_calls", [])])
        for message in row["messages"][2:]
    ]
    assert said == [
        ("She sold 48/2 =", [{"name": "calculate", "arguments": {"expression": "48/2"}}]),
        ("24", []),
        ("24 clips in May.\nThat is 48+24 =", [{"name": "calculate", "arguments": {"expression": "48+24"}}]),
        ("72", []),
        ("72 clips.", [{"name": "check_answer", "arguments": {"answer": 72}}]),
        ("You calculated 72. To give it as the answer, end with #### 72", []),
        ("#### 72", []),
    ]
    assert [schema["function"]["name"] for schema in row["tools"]] == ["calculate", "check_answer"]


@pytest.mark.parametrize(("count", "steps"), [(0, None), (1, 3), (3, 5), (4, 5), (5, None)])
def test_a_demonstration_fits_an_episode_or_is_left_out(run: SampleRun, count: int, steps: int | None) -> None:
    assert run.plan.config.rollout.max_steps == process.MAX_STEPS == 5
    problem = gsm8k.Problem(question="?", worked=" and ".join(["<<1+1=2>>2"] * count), answer="2")
    row = asyncio.run(process.demonstration(problem, check=True))
    assert (row and [message["role"] for message in row["messages"]].count("assistant")) == steps


def test_an_annotation_that_does_not_work_out_is_named() -> None:
    problem = gsm8k.Problem(question="?", worked="<<1/0=2>>2", answer="2")
    with pytest.raises(DataError, match=r"row 7 of train has a calculation that does not work out: division by zero"):
        process.task_row(problem, "train", 7)


def test_every_demonstration_solves_its_task_as_a_rollout_would_show_it(run: SampleRun) -> None:
    marks = [problem.worked.count("<<") for problem in gsm8k.read_splits(SAMPLE)["train"]]
    assert len(run.demonstrations) == sum(0 < count <= 4 for count in marks) > 25
    for row in run.demonstrations:
        turns = list(demonstrated_turns(run.renderer, row))
        engine = ScriptedEngine([said for _, said in turns])
        trajectory = play(run, task_of(run, row), engine)
        assert (trajectory.outcome_reward, trajectory.stop_reason) == (1.0, StopReason.DONE), trajectory.error
        assert [prompt for prompt, _ in engine.requests] == [prompt for prompt, _ in turns]
        assert trajectory.metrics["tool/calculate/calls"] >= 1
        assert not [name for name in trajectory.metrics if name.endswith(("errors", "invalid"))]


def test_only_training_rows_are_demonstrated(run: SampleRun) -> None:
    splits = gsm8k.read_splits(SAMPLE)
    held_out = {problem.question for split in ("validation", "test") for problem in splits[split]}
    assert (len(splits["validation"]), len(splits["test"])) == (len(run.plan.eval_tasks), 16)
    assert not [row for row in run.demonstrations if row["messages"][1]["content"] in held_out]


def useful_marks(problem: gsm8k.Problem) -> list[bool]:
    """Which calculations of a worked solution are useful, when they are made in its order."""
    expressions = [step.expression for step in process.calculations(problem.worked)[0]]
    results = [evaluate(expression) for expression in expressions]
    numbers = tools.numbers_in(problem.question)
    return [
        tools.is_useful(expression, results[index], given=numbers, earlier=results[:index], solution=results)
        for index, expression in enumerate(expressions)
    ]


# --- demonstrations in a model's own words --------------------------------------------------------------------------

OWN_WORDS = r"""To find the clips, we follow these steps:

1. Clips in May:
   \[
   \frac{48}{2} = 24 \text{ clips}
   \]
2. All clips:
   \[ \text{Total} = 48 \text{ clips} + 24 = 72 \]

Natalia sold \(\boxed{72}\) clips in 2 months."""


def test_the_calculations_of_a_solution_become_calls() -> None:
    row = own_words.demonstration(prompts.question("How many?"), OWN_WORDS, "72")
    assert row is not None
    said = [(message["role"], message["content"]) for message in row["messages"][2:]]
    assert said == [
        ("assistant", "To find the clips, we follow these steps:\n\n1. Clips in May:"),
        ("tool", "24"),
        ("assistant", "\\[\n   \\frac{48}{2} = 24 \\text{ clips}\n   \\]\n2. All clips:"),
        ("tool", "72"),
        (
            "assistant",
            "\\[ \\text{Total} = 48 \\text{ clips} + 24 = 72 \\]\n\nNatalia sold 72 clips in 2 months.\n#### 72",
        ),
    ]
    calls = [
        message["tool_calls"][0]["function"]["arguments"] for message in row["messages"] if "tool_calls" in message
    ]
    assert calls == [{"expression": "48 / 2"}, {"expression": "48 + 24"}]
    assert row["messages"][0]["content"] == prompts.SYSTEM
    assert [schema["function"]["name"] for schema in row["tools"]] == ["calculate", "check_answer"]


@pytest.mark.parametrize(
    ("text", "expressions"),
    [
        (r"$5 \times 4 = \$20", ["5 * 4"]),
        (r"\(1,200 \div 3 = 400\)", ["1200 / 3"]),
        (r"20\% \times 50 = 10", ["(20/100) * 50"]),
        (r"(3 + 4) * 2 = 14 and \frac{3 + 5}{2} = 4", ["(3 + 4) * 2", "(3 + 5) / 2"]),
        (r"10 / 3 = 3.33", ["10 / 3"]),
        ("48 / 2 = 24, so 48 + 24 = 72, and 2 * 600 = 1,200, too", ["48 / 2", "48 + 24", "2 * 600"]),
        ("1 + 1 = 3", []),  # wrong
        ("x + 1 = 3, 7 = 7", []),  # nothing to calculate
        ("2 + 3 = 4 + 1", []),  # no result
        ("5 / 0 = 0", []),
    ],
)
def test_calculations_are_read_as_models_write_them(text: str, expressions: list[str]) -> None:
    assert [found.expression for found in own_words.equations(text)] == expressions


def test_a_long_sum_without_a_result_is_read_in_no_time() -> None:
    started = time.perf_counter()
    assert own_words.equations("1 + " * 20 + "1 eggs") == []
    assert time.perf_counter() - started < 2


@pytest.mark.parametrize(
    ("solution", "answer"),
    [(OWN_WORDS, "71"), (OWN_WORDS.replace(r"\boxed{72}", "72"), "72"), (r"It is \(\boxed{72}\).", "72")],
)
def test_a_wrong_solution_or_one_without_a_box_or_a_calculation_is_left_out(solution: str, answer: str) -> None:
    assert own_words.demonstration(prompts.question("How many?"), solution, answer) is None


def test_the_longest_calculations_become_calls_where_an_episode_has_too_few_steps() -> None:
    sums = " ".join(f"{first} + {'1 + ' * first}0 = {2 * first}" for first in range(1, 7))
    row = own_words.demonstration(prompts.question("How many?"), rf"{sums} \boxed{{12}}", "12")
    assert row is not None
    calls = [
        message["tool_calls"][0]["function"]["arguments"] for message in row["messages"] if "tool_calls" in message
    ]
    assert [call["expression"][0] for call in calls] == ["3", "4", "5", "6"]
    assert "1 + 1 + 0 = 2 2 + 1 + 1 + 0 = 4" in row["messages"][2]["content"]


def test_a_demonstration_in_own_words_is_what_a_rollout_shows(run: SampleRun) -> None:
    question = run.plan.train_tasks[0]
    answer = str(question.ground_truth)
    solution = rf"First \( {answer} + 1 - 1 = {answer} \), so it is \boxed{{{answer}}}."
    row = own_words.demonstration(question.prompt, solution, answer)
    assert row is not None
    turns = list(demonstrated_turns(run.renderer, row))
    engine = ScriptedEngine([said for _, said in turns])
    trajectory = play(run, question, engine)
    assert (trajectory.outcome_reward, trajectory.stop_reason) == (1.0, StopReason.DONE), trajectory.error
    assert [prompt for prompt, _ in engine.requests] == [prompt for prompt, _ in turns]


def test_without_tools_one_boxed_answer_ends_the_episode() -> None:
    async def play_plain() -> tuple[str, bool]:
        env = plain_env.PlainEnv()
        shown = await env.reset(task())
        step = await env.step(Action(text=r"\boxed{72}"))
        return str((shown.messages or ())[0]["content"]), step.done

    assert asyncio.run(play_plain()) == (prompts.PLAIN, True)
    for text, score in ((r"\boxed{71} or \boxed{\$72}, in 2 months", 1.0), ("#### 72", 0.0), (r"\boxed{71}: 72", 0.0)):
        assert reward_fn.score_boxed(task(), answer_episode(text))["score"] == score


@pytest.mark.whole
@pytest.mark.skipif(not (WHOLE_DATA / "gsm8k").is_dir(), reason="needs the whole of GSM8K")
def test_the_whole_of_gsm8k_gives_the_figures_of_the_readme() -> None:
    splits = gsm8k.read_splits(WHOLE_DATA / "gsm8k")
    train, held_out = splits["train"], [*splits["validation"], *splits["test"]]
    counts = [len(process.calculations(problem.worked)[0]) for problem in train]
    shown = asyncio.run(process.demonstrations(train))
    assert (len(train), counts.count(0), sum(count > 4 for count in counts)) == (6961, 87, 1161)
    assert len(shown) == 6961 - 87 - 1161
    useful = [paid for problem in train for paid in useful_marks(problem)]
    assert (len(useful), round(100 * sum(useful) / len(useful))) == (22_101, 85)
    tasks = [task(problem) for problem in (*train, *held_out)]
    found = asyncio.run(gold_result(reward_fn.score, tasks))
    assert (found.findings, found.seen[:12]) == ((), "8792 of 8792")
    answers = [row["messages"][-1]["content"] for row in shown]
    by_question = {row.prompt[-1]["content"]: row for row in tasks}
    for row, text in zip(shown, answers, strict=True):
        shown_task = by_question[row["messages"][1]["content"]]
        assert reward_fn.score(shown_task, answer_episode(text))["score"] == 1.0


@pytest.mark.whole
def test_the_recipe_checks_and_trains_from_its_own_warm_start(run: SampleRun) -> None:
    small = ["trainer.steps=2", "rollout.groups_per_step=2", "rollout.group_size=2", "sft.steps=2", "sft.batch_size=4"]
    overrides = [*run.overrides, *small, "eval.max_tasks=2", "eval.every=0", "trainer.micro_batch_tokens=2048"]
    report = commands.check(str(RECIPE), *overrides, groups=1, members=2, quiet=True)
    # Two steps teach nobody to answer, or to call a tool.
    found = {result.title: result for result in report.results}
    assert {title for title, result in found.items() if result.findings} <= {"rewards", "trial episodes", "tool use"}
    assert found["gold answers"].seen == "48 of 48 gold answers (gold_answer) score full marks, 0 wrong ones do"
    assert found["tools"].seen == "calculate, check_answer"
    summary = commands.train(str(RECIPE), *overrides, quiet=True)
    assert summary.steps == 2
    assert (Path(run.plan.config.run.folder) / "gsm8k_tool" / "hf" / "model.safetensors").is_file()
