"""The recipe math_code: its grader, tool format, programs and demonstrations, its data, a whole small run."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("math_verify", reason="math_code grades with math-verify: pip install 'agent-r1[math]'")


from agent_r1.chat import ChatRenderer
from agent_r1.checks.rows import answer_episode, gold_result
from agent_r1.data.tasks import read_rows
from agent_r1.engines import ScriptedEngine
from agent_r1.errors import DataError
from agent_r1.models.tiny import build_tiny_model, train_tokenizer
from agent_r1.registry import load_function, recipe_folder
from agent_r1.rewards import score_episode
from agent_r1.tools import num_cores
from agent_r1.training import prepare_plan
from agent_r1.training.demonstrations import Rule, choose_rows
from agent_r1.types import Action, Group, StopReason, Task, Trajectory
from recipes.math_code import grading, own_episodes, prompts, reward_fn
from recipes.math_code.code_blocks import CodeBlocks
from recipes.math_code.data_preprocess import process_math_code as process
from recipes.math_code.data_preprocess import sources
from recipes.math_code.grader import Grader, accepted_as_own, num_processes
from recipes.math_code.latex_python import UnreadableError, to_python
from recipes.math_code.plain_env import PlainEnv
from recipes.math_code.programs import programs
from recipes.math_code.tools import MathPython
from tests.helpers import commands
from tests.helpers.recipe_runs import ROOT, WHOLE_DATA, SampleRun, demonstrated_turns, play, task_of

RECIPE = ROOT / "recipes" / "math_code"
SAMPLE = RECIPE / "sample"


def task(answer: str) -> Task:
    return Task(task_id="1", prompt=tuple(prompts.question("?")), reward_model={"ground_truth": answer})


def scores(answer: str, *texts: str) -> list[tuple[float, float]]:
    """Reward and success of some answers to one problem."""

    async def score() -> list[tuple[float, float]]:
        found = [await score_episode(reward_fn.score, task(answer), answer_episode(text)) for text in texts]
        return [(entry.value, entry.parts["success"]) for entry in found]

    return asyncio.run(score())


# --- grading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "boxes"),
    [
        (r"So $\boxed{3}$.", ["3"]),
        (r"\boxed{\frac{1}{2}} or \boxed{ \{1, 2\} }", [r"\frac{1}{2}", r"\{1, 2\}"]),
        (r"\boxed {7}, \fbox{8}", ["7", "8"]),
        (r"\boxed{3", []),
        (r"\boxed{\}", []),
        (r"\boxed{a\\}", ["a\\\\"]),
        ("42", []),
    ],
)
def test_the_answer_is_what_is_boxed(text: str, boxes: list[str]) -> None:
    assert grading.boxed_answers(text) == boxes


def test_integers_and_equal_texts_are_judged_at_once() -> None:
    pairs = {("12", "12"): True, ("12", "-12"): False, ("x", "x"): True, ("12", ""): False, ("1", "1" * 2000): False}
    assert {pair: grading.quick_verdict(*pair) for pair in pairs} == pairs
    assert [grading.quick_verdict("12", text) for text in ("012", "12.0", "24/2", "1,2")] == [None] * 4


def test_a_wrong_answer_in_one_box_earns_a_little_and_a_right_one_all() -> None:
    texts = (
        r"\boxed{42}",
        r"\boxed{41}",
        r"\boxed{41} or \boxed{42}",
        r"\boxed{42} or \boxed{41}",
        "42",
        r"\boxed{}",
        "",
    )
    found = scores("42", *texts)
    assert found == [(1.0, 1.0), (0.1, 0.0), (1.0, 1.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)]


def test_a_box_that_was_cut_or_stands_beside_a_program_is_no_answer() -> None:
    async def score(text: str, **changes: Any) -> float:
        return (await score_episode(reward_fn.score, task("42"), answer_episode(text, **changes))).value

    assert asyncio.run(score(r"\boxed{42}", cut=True)) == 0.0


def test_gold_answers_are_parsed_once_and_integers_not_at_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parsing a thousand answers takes seconds; `sources` has several thousand, which people watch."""
    parsed: list[str] = []
    parse = load_function("math_verify:parse", kind="parser")

    def counting_parse(text: str) -> Any:
        parsed.append(text)
        return parse(text)

    async def is_right(grader: Grader, gold: str, answer: str) -> bool:
        return grading.verdict(gold, answer)

    monkeypatch.setattr("math_verify.parse", counting_parse)
    monkeypatch.setattr(Grader, "is_right", is_right)
    monkeypatch.setattr("agent_r1.console._SECONDS_BETWEEN_LINES", 0.0)
    golds = ["12", r"\frac{1}{2}", "-3", r"\frac{1}{2}", "x"]
    assert asyncio.run(accepted_as_own(golds)) == dict.fromkeys(golds, True)
    assert parsed == [r"\boxed{\frac{1}{2}}", r"\boxed{x}"]
    assert "grading with math-verify: 2 of 2 gold answers after 0 min\n" in capsys.readouterr().err


def test_gold_answers_are_graded_on_all_cores_and_a_rollout_leaves_half_to_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of this process: a container may have four of the machine's sixty-four."""
    sizes: list[int] = []

    async def is_right(grader: Grader, gold: str, answer: str) -> bool:
        sizes.append(grader._pool.size)
        return True

    monkeypatch.setattr(Grader, "is_right", is_right)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(4), raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    asyncio.run(accepted_as_own(["x"]))
    cores = num_cores()
    assert cores <= 4
    assert (sizes, num_processes()) == ([cores], max(1, cores // 2))
    assert MathPython().policy.max_concurrency == cores


@pytest.mark.whole
def test_verdicts_are_those_of_math_verify_in_batches_and_alone() -> None:
    golds = [row["answer"] for name in ("train", "math500") for row in read_rows(SAMPLE / f"{name}.jsonl")][::2]
    others = [
        "0.5",
        r"\frac{1}{2}",
        "x = 3",
        r"3\text{ cm}",
        "1,000",
        "(1, 2)",
        r"\{2, 1\}",
        "2^{10}",
        r"\sqrt{8}",
        "?",
    ]
    pairs = [(gold, f"{gold} ") for gold in golds] + list(zip(golds, golds[1:] + golds[:1], strict=True))
    pairs += [(one, other) for one in others for other in others if one != other]

    async def judged() -> list[bool]:
        return list(await asyncio.gather(*(Grader.here().is_right(*pair) for pair in pairs)))

    assert asyncio.run(judged()) == [grading.verdict(*pair) for pair in pairs]


@pytest.mark.whole
def test_hostile_answers_neither_hang_nor_spoil_the_others() -> None:
    hostile = ["9^{9^{9^{9}}}", r"\binom{10^{9}}{10^{8}}", "(10^{10^{8}})!", "{" * 400, r"\frac" * 200, "1" * 900 + "!"]
    normal = [(r"\frac{1}{2}", "0.5", True), (r"\frac{1}{3}", "0.5", False), ("2", r"\sqrt{4}", True)]

    async def judged() -> tuple[list[bool], list[bool]]:
        grader = Grader.here()
        bad = [grader.is_right("7", text) for text in hostile]
        good = [grader.is_right(gold, answer) for gold, answer, _ in normal]
        found = await asyncio.gather(*bad, *good)
        return found[: len(hostile)], found[len(hostile) :]

    start = time.monotonic()
    bad, good = asyncio.run(judged())
    assert bad == [False] * len(hostile)
    assert good == [right for *_, right in normal]
    assert time.monotonic() - start < 300  # on a busy machine; alone it takes some seconds


# --- the tool format -------------------------------------------------------------------------------------------------


def test_python_blocks_are_calls() -> None:
    parsed = CodeBlocks().parse("Add.\n```python\nprint(1)\n```\n```py\nprint(2)\n```", truncated=False)
    assert [dict(call.arguments) for call in parsed.tool_calls] == [{"code": "print(1)"}, {"code": "print(2)"}]
    assert CodeBlocks().schemas_text([{"type": "function", "function": {"name": "python"}}]) == (
        "To run a program, write it as a block and stop there:\n```python\nprint(1 + 1)\n```\n"
        "Its output comes in the next message. Variables last from block to block."
    )


def test_without_the_tool_one_action_reasons_and_ends() -> None:
    async def run() -> None:
        env = PlainEnv()
        observation = await env.reset(task("42"))
        assert [message["content"] for message in observation.messages or ()] == [prompts.PLAIN_SYSTEM, "?"]
        assert not observation.tools
        assert (await env.step(Action(text="x", content="x"))).done

    asyncio.run(run())


# --- programs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("latex", "python"),
    [
        (r"\frac{3}{4}x^2 - 2x", "S(3)/4*x**2 - 2*x"),
        (r"\sqrt{16} + \sqrt[3]{8}", "sqrt(16) + root(8, 3)"),
        (r"\frac12 \cdot 3", "S(1)/2*3"),
        (r"1{,}000 + 2,500", "1000 + 2500"),
        (r"\left( x + 1 \right)^{-2}", "S((x + 1))**(-2)"),
        (r"\sin^2 30^\circ", "sin(rad(30))**2"),
        (r"\binom{5}{2} - 3!", "binomial(5, 2) - factorial(3)"),
        (r"\lfloor 2.5 \rfloor + |{-3}|", 'floor(Rational("2.5")) + Abs((-3))'),
        (r"2^{10} \div 4", "S(2**10)/4"),
    ],
)
def test_simple_latex_is_read(latex: str, python: str) -> None:
    assert to_python(latex) == python


@pytest.mark.parametrize(
    "latex", ["", r"\int x", "3 4", "x_1", r"\begin{pmatrix}1\end{pmatrix}", "(1", "a & b", "1 + 2 + \\cdots"]
)
def test_other_latex_is_refused(latex: str) -> None:
    with pytest.raises(UnreadableError):
        to_python(latex)


@pytest.mark.parametrize(
    ("problem", "part"),
    [
        ("Compute $\\sqrt{16} + 3$.", "print(simplify(sqrt(16) + 3))"),
        ("If $f(x) = 2x + 1$, what is $f(f(3))$?", "def f(x):\n    return 2*x + 1\n"),
        ("What is the greatest common divisor of 12 and 18?", "print(math.gcd(12, 18))"),
        ("What is the remainder when $7^{20}$ is divided by 5?", "print((7**20) % 5)"),
        ("How many positive divisors does 360 have?", "n = 360\nprint(len(divisors(n)))"),
        ("What is the minimum value of $x^2 - 6x$?", "print(minimum(x**2 - 6*x, x, S.Reals))"),
        ("If $x + y = 3$ and $x - y = 1$, find $xy$.", "equations = [Eq(x + y, 3), Eq(x - y, 1)]"),
        ("Convert $123_5$ to base 10.", 'print(int("123", 5))'),
        ("How many integers satisfy $x^2 < 17$?", "for x in range(-2000, 2001) if x**2 < 17"),
        ("Factor $x^2 - 9$.", "print(factor(x**2 - 9))"),
    ],
)
def test_problems_of_known_kinds_have_a_program(problem: str, part: str) -> None:
    assert part in next(programs(problem)).code


@pytest.mark.parametrize(
    "problem", ["How many ways are there to seat five people?", "In $\\triangle ABC$ we have $AB=7$.", "", "$"]
)
def test_other_problems_have_none(problem: str) -> None:
    assert list(programs(problem)) == []


# --- data ------------------------------------------------------------------------------------------------------------


def write(folder: Path, **files: Sequence[dict[str, Any]]) -> Path:
    for name, rows in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_every_layout_gives_the_same_problem(tmp_path: Path) -> None:
    rows = [
        {"problem": "Find $x$.", "answer": "2", "level": "Level 3", "type": "Algebra"},
        {"prompt": "Find $y$.", "answer": 2},
        {"problem": "Find $z$.", "level": 5, "solution": r"It is $\boxed{\frac{1}{2}}$."},
        {"input": "Find $u$.", "output": "45"},
    ]
    folder = write(tmp_path, train=rows, math500=rows[:1], aime24=rows[3:])
    problems = list(sources.read_problems([folder / "train.jsonl"], "math"))
    assert [(problem.text, problem.answer) for problem in problems] == [
        ("Find $x$.", "2"),
        ("Find $y$.", "2"),
        ("Find $z$.", r"\frac{1}{2}"),
        ("Find $u$.", "45"),
    ]
    assert [problem.level for problem in problems] == ["3", "", "5", ""]


def test_problems_of_the_test_sets_copies_and_rows_without_an_answer_are_not_trained_on(tmp_path: Path) -> None:
    train = [{"problem": f"Find ${name}$.", "answer": "1"} for name in "abcdefghij"]
    train += [{"problem": "find  a", "answer": "1"}, {"problem": r"What is $\left(T\right)$?", "answer": "1"}]
    train += [{"problem": "No answer.", "answer": None}, {"problem": "Long " * 400, "answer": "1"}]
    folder = write(tmp_path, train=train, math500=[{"problem": "What is (t)?", "answer": "1"}], aime24=train[:1])
    splits = sources.read_splits(folder, usable={"1": True})
    counts = {name: count for name, count in splits.left_out.items() if count}
    assert counts == {"in a test set": 3, "no answer": 1, "too long": 1}
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (8, 1, 2)
    assert len(sources.read_splits(folder, usable={"1": False}).train) == 0
    keys = [
        {sources.text_key(problem.text) for problem in part} for part in (splits.train, splits.validation, splits.test)
    ]
    assert not keys[0] & keys[1] | keys[0] & keys[2] | keys[1] & keys[2]


def test_wrong_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no folder .*nowhere"):
        sources.read_splits(tmp_path / "nowhere")
    folder = write(tmp_path, train=[{"text": "?"}])
    with pytest.raises(DataError, match=r"has no files math500\*, aime24\*. Found: train.jsonl"):
        sources.read_splits(folder)
    write(tmp_path, math500=[{"problem": "?", "answer": "1"}], aime24=[{"problem": "!", "answer": "1"}])
    with pytest.raises(DataError, match=r"row 0 of math needs a problem .* and an answer"):
        sources.read_splits(folder)


# --- whole runs ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SampleRun:
    """The recipe with the rows of its sample and a tiny model whose vocabulary is that of its demonstrations."""
    folder = tmp_path_factory.mktemp("math_code")
    (folder / "data").mkdir()
    (folder / "data" / "math").symlink_to(SAMPLE)
    overrides = [
        f"run.folder={folder / 'runs'}",
        f"model.path={folder / 'model'}",
        "rollout.context_length=512",
        "rollout.max_tokens=24",
    ]
    _, config = commands.resolve([str(RECIPE), *overrides])
    with pytest.MonkeyPatch.context() as patch, recipe_folder(RECIPE):
        patch.setenv("AGENT_R1_DATA", str(folder / "data"))
        plan = prepare_plan(config)
    rows = list(read_rows(Path(config.sft.data[0])))
    build_tiny_model(rows, folder / "model")
    return SampleRun(RECIPE, plan, ChatRenderer(train_tokenizer(rows), "code_blocks"), rows, overrides)


def answers(run: SampleRun, row: Task, *texts: str) -> Trajectory:
    """One rollout of a task in which the model says these texts."""
    engine = ScriptedEngine([(*run.renderer.encode(text), next(iter(run.renderer.stop_ids))) for text in texts])
    return play(run, row, engine)


@pytest.mark.whole
def test_every_demonstration_solves_its_task_as_a_rollout_would_show_it(run: SampleRun) -> None:
    assert len(run.demonstrations) > 20
    for row in run.demonstrations:
        turns = list(demonstrated_turns(run.renderer, row))
        engine = ScriptedEngine([said for _, said in turns])
        trajectory = play(run, task_of(run, row), engine)
        assert (trajectory.outcome_reward, trajectory.stop_reason) == (1.0, StopReason.DONE), trajectory.error
        assert [prompt for prompt, _ in engine.requests] == [prompt for prompt, _ in turns]
        assert trajectory.metrics["tool/python/calls"] == len(turns) - 1
    held_out = {task.prompt[-1]["content"] for task in run.plan.eval_tasks}
    assert not [row for row in run.demonstrations if row["messages"][1]["content"] in held_out]


def kept_rows(group: Group, keep: int) -> list[dict[str, Any]]:
    return asyncio.run(choose_rows([group], keep, Rule(own_episodes.own_episode))).rows


def test_the_recipe_names_its_rule_for_own_episodes() -> None:
    _, config = commands.resolve([str(RECIPE)])
    with recipe_folder(RECIPE):
        rule = load_function(str(config.sft.from_episode), kind="sft.from_episode")
    assert rule.__name__ == own_episodes.own_episode.__name__


@pytest.mark.whole
def test_sampled_episodes_are_kept_when_their_program_printed_the_right_answer(run: SampleRun) -> None:
    row = next(task for task in run.plan.train_tasks if task.ground_truth == "3")
    final = r"So \boxed{3}."
    kept = answers(run, row, "```python\nprint('x =', 1 + 2)\n```", final)
    longer = answers(run, row, "```python\nx = 1 + 2\n```", "```python\nprint(x)\n```", final)
    guessed = answers(run, row, final)
    unrelated = answers(run, row, "```python\nprint(7)\n```", final)
    wrong = answers(run, row, "```python\nprint(3)\n```", r"So \boxed{4}.")
    malformed = answers(run, row, "```python\nprint(3)", "```python\nprint(3)\n```", final)
    group = Group(task=row, group_id=0, trajectories=(longer, guessed, unrelated, wrong, malformed, kept, kept))
    rows = kept_rows(group, keep=5)
    said = [[m["content"] for m in entry["messages"] if m["role"] == "tool"] for entry in rows]
    assert said == [["x = 3"], ["(no output)", "3"]]
    assert kept_rows(group, keep=1) == rows[:1]
    [turns] = [list(demonstrated_turns(run.renderer, rows[0]))]
    assert len(turns) == 2


@pytest.mark.whole
def test_the_recipe_checks_and_trains_from_its_own_warm_start(run: SampleRun) -> None:
    small = ["trainer.steps=1", "rollout.groups_per_step=2", "rollout.group_size=2", "sft.steps=2", "sft.batch_size=4"]
    overrides = [*run.overrides, *small, "eval.max_tasks=2", "eval.every=0", "trainer.micro_batch_tokens=2048"]
    report = commands.check(str(RECIPE), *overrides, groups=1, members=2, quiet=True)
    # Two steps do not teach a model to answer, or to write a program.
    found = {result.title: result for result in report.results}
    assert {title for title, result in found.items() if result.findings} <= {"rewards", "trial episodes", "tool use"}
    assert found["gold answers"].seen == "64 of 64 gold answers (gold_answer) score full marks, 0 wrong ones do"
    assert found["tools"].seen == "python"
    summary = commands.train(str(RECIPE), *overrides, quiet=True)
    assert summary.steps == 1
    assert (Path(run.plan.config.run.folder) / "math_code" / "hf" / "model.safetensors").is_file()


def run_now(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(coroutine)


@pytest.mark.slow
@pytest.mark.skipif(not (WHOLE_DATA / "math").is_dir(), reason="needs the whole of MATH")
def test_the_whole_data_gives_the_figures_of_the_readme() -> None:
    splits = process.read_graded(WHOLE_DATA / "math")
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (9947, 400, 530)
    assert splits.left_out["cannot be graded"] == 0
    answers = [problem.answer for problem in (*splits.test, *splits.validation)]
    assert all(run_now(accepted_as_own(answers)).values())
    plain = [answer for answer in answers if not answer.startswith("x=")]  # `x=5` is right where another row wants 5
    found = run_now(gold_result(reward_fn.score, [task(answer) for answer in plain]))
    assert (found.findings, found.seen[:10]) == ((), f"{len(plain)} of {len(plain)}")
    assert len(plain) >= 925
