"""The recipe bfcl: which calls a row accepts, what models are shown, evaluations, and the comparison of two."""

from __future__ import annotations

import asyncio
import copy
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from transformers import LlamaForCausalLM

from agent_r1.data.tasks import load_tasks, read_rows
from agent_r1.errors import ConfigError, DataError
from agent_r1.models.tiny import train_tokenizer
from agent_r1.registry import load_module, recipe_folder
from agent_r1.types import Action, Episode, Step, StopReason, Task, ToolCall
from tests.conftest import tiny_config
from tests.helpers import commands
from tests.helpers.recipe_runs import ROOT, WHOLE_DATA

RECIPE = ROOT / "recipes" / "bfcl"
SAMPLE = RECIPE / "sample"

with recipe_folder(RECIPE):
    compare = load_module("compare")
    environment = load_module("env")
    matching = load_module("matching")
    process = load_module("data_preprocess.process_bfcl")
    reward_fn = load_module("reward_fn")
    sources = load_module("data_preprocess.sources")

Call = tuple[str, dict[str, Any]]
FUNCTIONS = [
    {
        "name": "shop.order",
        "parameters": {
            "type": "dict",
            "required": ["item", "count"],
            "properties": {
                "item": {"type": "string"},
                "count": {"type": "integer"},
                "price": {"type": "float"},
                "gift": {"type": "boolean"},
                "sizes": {"type": "array", "items": {"type": "integer"}},
                "address": {"type": "dict", "properties": {"city": {"type": "string"}, "zip": {"type": "string"}}},
            },
        },
    }
]
ACCEPTED = {
    "item": ["green tea", "tea"],
    "count": [2],
    "price": ["", 3.0],
    "gift": ["", True],
    "sizes": ["", [1, 2]],
    "address": ["", {"city": ["Paris"], "zip": ["", "75001"]}],
}
TRUTH = [{"shop.order": ACCEPTED}]


def fits(**arguments: Any) -> bool:
    return bool(matching.calls_match([("shop_order", {"item": "tea", "count": 2, **arguments})], TRUTH, FUNCTIONS))


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"item": "Green-Tea"},
        {"price": 3.0},
        {"price": 3},
        {"gift": True},
        {"sizes": [1, 2]},
        {"address": {"city": "paris"}},
        {"address": {"city": "Paris", "zip": "75 001"}},
    ],
    ids=str,
)
def test_accepted_values_of_the_right_type_are_right(arguments: dict[str, Any]) -> None:
    assert fits(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"item": "coffee"},
        {"item": ["tea"]},
        {"count": 3},
        {"count": 2.0},
        {"count": "2"},
        {"count": True},
        {"price": "3.0"},
        {"price": True},
        {"gift": False},
        {"gift": 1},
        {"gift": "true"},
        {"sizes": [2, 1]},
        {"sizes": [1]},
        {"sizes": [1.0, 2]},
        {"sizes": "1,2"},
        {"address": "Paris"},
        {"address": {}},
        {"address": {"city": "Paris", "street": "x"}},
        {"color": "green"},
        {"price": None},
    ],
    ids=str,
)
def test_other_values_types_and_arguments_are_wrong(arguments: dict[str, Any]) -> None:
    assert not fits(**arguments)


def test_a_required_argument_cannot_be_left_out() -> None:
    truth = [{"shop.order": {**ACCEPTED, "count": [2, ""]}}]
    assert not matching.calls_match([("shop_order", {"item": "tea"})], truth, FUNCTIONS)
    assert matching.calls_match([("shop_order", {"item": "tea"})], truth, [])


def test_parallel_calls_come_in_any_order_and_each_once() -> None:
    # The first call fits both, so a greedy assignment would fail.
    truth = [{"f": {"x": [1, 2]}}, {"f": {"x": [1]}}]
    one, two = ("f", {"x": 1}), ("f", {"x": 2})
    assert all(matching.calls_match(calls, truth, []) for calls in ([one, two], [two, one], [one, one]))
    assert not any(matching.calls_match(calls, truth, []) for calls in ([two, two], [one], [one, two, one], []))


def test_no_call_is_right_where_none_is_due() -> None:
    assert matching.calls_match([], [], FUNCTIONS)
    assert not matching.calls_match([("shop_order", {})], [], FUNCTIONS)


def perturbed(gold: Sequence[Call], functions: Sequence[Any], num_arguments: int) -> Iterator[list[Call]]:
    """Calls that must be wrong: another name, a call more or less, an argument more or less, another value or type."""
    extra = (matching.plain_name(functions[0]["name"]), {})
    yield [*gold, extra]
    if not gold:
        return
    yield list(gold[:-1])
    yield [("another_function", gold[0][1]), *gold[1:]]
    for number, (name, arguments) in enumerate(gold):

        def changed(given: Any, number: int = number, name: str = name) -> list[Call]:
            return [*gold[:number], (name, given), *gold[number + 1 :]]

        yield changed({**arguments, "no_such_argument": 1})
        for key, value in list(arguments.items())[:num_arguments]:
            yield changed({other: entry for other, entry in arguments.items() if other != key})
            for wrong in ("no such value 7", -987654321, [value], {"a": value}):
                yield changed({**arguments, key: wrong})
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield changed({**arguments, key: str(value)})
                yield changed({**arguments, key: value + 1_000_003})


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return cast(list[dict[str, Any]], sources.bfcl_rows(SAMPLE))


def check_rows(some: Sequence[dict[str, Any]], num_arguments: int) -> int:
    """Gold calls of every row are right, perturbed ones wrong; the number of perturbations."""
    count = 0
    for row in some:
        truth, functions = row["ground_truth"], row["tools"]
        gold = list(matching.gold_calls(truth, functions))
        assert matching.calls_match(gold, truth, functions), row["id"]
        assert matching.calls_match(gold[::-1], truth, functions), row["id"]
        for calls in perturbed(gold, functions, num_arguments):
            assert not matching.calls_match(calls, truth, functions), (row["id"], calls)
            count += 1
    return count


def test_gold_calls_of_the_sample_are_right_and_perturbed_ones_never(rows: list[dict[str, Any]]) -> None:
    assert {row["category"] for row in rows} == set(sources.CATEGORIES)
    assert check_rows(rows, 99) > 500


@pytest.mark.whole
@pytest.mark.skipif(not (WHOLE_DATA / "bfcl").is_dir(), reason="the whole data set is not here")
def test_gold_calls_of_all_rows_are_right_and_perturbed_ones_never() -> None:
    everything = sources.bfcl_rows(WHOLE_DATA / "bfcl")
    assert len(everything) == 1991
    assert check_rows(everything, 2) > 20_000


# Rows, the environment and the score


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    folder = tmp_path_factory.mktemp("bfcl")
    process.main(["--local_save_dir", str(folder), "--local_dataset_path", str(SAMPLE)])
    return load_tasks([folder / "test.jsonl"])


def episode(*calls: Call, parse_error: str | None = None, reason: StopReason = StopReason.DONE) -> Episode:
    made = tuple(ToolCall(name=name, arguments=arguments) for name, arguments in calls)
    action = Action(text="", tool_calls=made, parse_error=parse_error)
    step = cast(Step, SimpleNamespace(action=action))
    return Episode(steps=(step,), stop_reason=reason)


def test_the_score_is_that_of_the_calls(tasks: list[Task]) -> None:
    for task in tasks:
        gold = list(matching.gold_calls(task.ground_truth, task.env_kwargs["functions"]))
        assert reward_fn.score(task, episode(*gold)) == {"score": 1.0, "success": 1.0, "well_formed": 1.0}
        for wrong in (episode(*gold, ("f", {})), episode(*gold, reason=StopReason.MAX_TOKENS)):
            assert reward_fn.score(task, wrong)["score"] == 0.0
    none_due = next(task for task in tasks if task.data_source == "irrelevance")
    assert reward_fn.score(none_due, episode())["success"] == 1.0
    assert reward_fn.score(none_due, episode(parse_error="no JSON"))["success"] == 0.0


def test_functions_are_shown_as_json_schemas(tasks: list[Task]) -> None:
    shown = [tool for task in tasks for tool in asyncio.run(environment.FunctionCallEnv().reset(task)).tools]
    text = json.dumps(shown)
    assert not [kind for kind in ("dict", "float", "tuple", "any") if f'"type": "{kind}"' in text]
    assert all("." not in tool["function"]["name"] for tool in shown)
    assert all(tool["function"]["parameters"]["type"] == "object" for tool in shown)


@pytest.mark.parametrize("functions", [None, "f", [1], [{"description": "x"}]])
def test_a_row_without_functions_or_truth_is_refused(functions: Any) -> None:
    task = Task(task_id="t", prompt=(), env_kwargs={"functions": functions}, reward_model={"ground_truth": []})
    with pytest.raises(DataError, match=r"task 't' needs env_kwargs.functions"):
        environment.row_functions(task)
    with pytest.raises(DataError, match="a list of calls"):
        reward_fn.score(Task(task_id="t", prompt=()), episode())


def test_the_official_files_give_the_same_rows(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "possible_answer").mkdir()
    for category in sources.CATEGORIES:
        own = [row for row in rows if row["category"] == category]
        asked = [{"id": row["id"], "question": [row["messages"]], "function": row["tools"]} for row in own]
        answers = [{"id": row["id"], "ground_truth": row["ground_truth"]} for row in own]
        files = {tmp_path / f"BFCL_v4_{category}.jsonl": asked}
        if category not in sources.WITHOUT_CALLS:
            files[tmp_path / "possible_answer" / f"BFCL_v4_{category}.jsonl"] = answers
        for file, lines in files.items():
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = {row["id"]: row for row in sources.bfcl_rows(tmp_path)}
    assert found == {row["id"]: row for row in rows}


@pytest.mark.parametrize(
    ("column", "value"), [("tools", None), ("ground_truth", [{"f": 3}]), ("ground_truth", [{}]), ("messages", "hi")]
)
def test_broken_rows_are_refused(rows: list[dict[str, Any]], tmp_path: Path, column: str, value: Any) -> None:
    broken = {**copy.deepcopy(rows[0]), column: value}
    (tmp_path / "bfcl_v4_single_turn.jsonl").write_text(json.dumps(broken) + "\n")
    with pytest.raises(DataError, match=f"of BFCL has no usable {column}"):
        sources.bfcl_rows(tmp_path)


# Comparing, and whole evaluations


def write_result(file: Path, solved: Sequence[float], sources_: Sequence[str] = ("simple",) * 8) -> str:
    names = [f"t{number}" for number in range(len(solved))]
    file.write_text(json.dumps({"tasks": names, "sources": list(sources_), "solved": list(solved)}))
    return str(file)


def test_two_evaluations_are_compared_per_category(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    categories = ["simple"] * 4 + ["irrelevance"] * 4
    before = write_result(tmp_path / "a.json", [0, 0, 0, 1, 1, 1, 1, 1], categories)
    after = write_result(tmp_path / "b.json", [1, 1, 0, 1, 1, 1, 1, 0], categories)
    assert compare.main([before, after]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:5] for line in lines[1:]] == [
        ["irrelevance", "4", "1.000", "0.750", "-0.250"],
        ["simple", "4", "0.250", "0.750", "+0.500"],
        ["all", "8", "0.625", "0.750", "+0.125"],
    ]
    assert compare.main([before, after, "--md"]) == 0
    assert "| simple | 4 | 0.250 | 0.750 | +0.500 (" in capsys.readouterr().out


def test_results_of_other_rows_and_other_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write_result(tmp_path / "a.json", [1.0] * 8)
    for other in (
        write_result(tmp_path / "b.json", [1.0] * 8, ["other"] * 8),
        write_result(tmp_path / "c.json", [1.0] * 7, ["simple"] * 7),
        str(tmp_path / "none.json"),
        str(RECIPE / "base.yaml"),
    ):
        assert compare.main([first, other]) == 2
        assert capsys.readouterr().err.startswith("error: ")


def test_training_on_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="this recipe has no rows to train on: evaluate with it"):
        commands.train(str(RECIPE), "model.path=none", quiet=True)


@pytest.mark.whole
def test_a_model_is_evaluated_per_category(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    shutil.copytree(SAMPLE, tmp_path / "data" / "bfcl")
    monkeypatch.setenv("AGENT_R1_DATA", str(tmp_path / "data"))
    asked = [{"messages": row["messages"]} for row in read_rows(SAMPLE / "bfcl_v4_single_turn.jsonl")]
    answer = {"role": "assistant", "content": "no"}
    tokenizer = train_tokenizer([{"messages": [*row["messages"], answer]} for row in asked])
    config = tiny_config(tokenizer)
    config.max_position_embeddings = 16384
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    cast(Any, tokenizer).save_pretrained(tmp_path / "model")
    small = ("eval.max_tasks=9", "rollout.max_tokens=4")
    evaluation = commands.evaluate(str(RECIPE), *small, model=tmp_path / "model", quiet=True)
    assert {name.split("/")[1] for name in evaluation.metrics} == {*sources.CATEGORIES, "all"}
    assert evaluation.metrics["eval/all/rows"] == 9
    report = commands.check(str(RECIPE), *small, f"model.path={tmp_path / 'model'}", trials=False, quiet=True)
    assert [finding.rule for finding in report.problems] == []
