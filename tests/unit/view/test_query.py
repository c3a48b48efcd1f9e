"""Lists of trajectories: every filter against a plain loop over the rows, searching, sorting and paging."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_r1.errors import DataError
from agent_r1.types import StopReason
from agent_r1.view import Catalog, ViewApi
from agent_r1.view.index.filters import parse_filters
from agent_r1.view.index.words import as_words, search_phrases
from tests.helpers.viewed_runs import HOSTILE, WrittenRun, make_group, make_trajectory, shop_run

Row = dict[str, Any]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> ViewApi:
    folder = tmp_path_factory.mktemp("runs")
    shop_run(folder / "shop")
    return indexed(folder)


def indexed(folder: Path) -> ViewApi:
    api = ViewApi(Catalog([folder]))
    for run in api.catalog.runs():
        run.index.update()
    return api


def listed(api: ViewApi, run: str = "shop", **parameters: Any) -> list[str]:
    asked = [(name, str(value)) for name, value in {"limit": 1000, **parameters}.items()]
    return [row["key"] for row in api.trajectories(run, asked)["rows"]]


FILTERS: list[tuple[dict[str, Any], Callable[[Row], bool]]] = [
    ({"step": 2}, lambda row: row["step"] == 2),
    ({"step_min": 2, "step_max": 3}, lambda row: 2 <= row["step"] <= 3),
    ({"reward_min": 0.5}, lambda row: row["reward"] >= 0.5),
    ({"reward_max": 0.5}, lambda row: row["reward"] <= 0.5),
    ({"success": 1}, lambda row: row["success"] >= 1),
    ({"success": 0}, lambda row: row["success"] < 1),
    ({"failed": 1}, lambda row: row["failed"]),
    ({"failed": 0}, lambda row: not row["failed"]),
    ({"stop_reason": "max_steps"}, lambda row: row["stop_reason"] == "max_steps"),
    ({"tool": "calculate"}, lambda row: "calculate" in row["tools"]),
    ({"task": "task-1"}, lambda row: row["task_id"] == "task-1"),
    ({"group": 1}, lambda row: row["group_id"] == 1),
    ({"kind": "eval"}, lambda row: row["kind"] == "eval"),
    ({"data_source": "default"}, lambda row: True),
    ({"kind": "train", "tool": "price", "step_min": 2, "success": 1, "task": "task-0"}, lambda row: False),
]


@pytest.mark.parametrize(("parameters", "keeps"), FILTERS[:-1])
def test_a_filter_selects_what_a_loop_over_the_rows_selects(
    api: ViewApi, parameters: dict[str, Any], keeps: Callable[[Row], bool]
) -> None:
    everything = api.trajectories("shop", [("limit", "1000")])["rows"]
    assert len(everything) == 20
    chosen = listed(api, **parameters)
    assert chosen == [row["key"] for row in everything if keeps(row)]
    assert chosen


def test_filters_are_combined(api: ViewApi) -> None:
    assert listed(api, kind="train", tool="price", step_min=2, success=1, task="task-0") == ["2-2", "3-2"]


def test_any_of_several_tools_or_stop_reasons(api: ViewApi) -> None:
    reasons = [("stop_reason", "max_steps"), ("stop_reason", "env_error"), ("limit", "1000")]
    rows = api.trajectories("shop", reasons)["rows"]
    assert {row["stop_reason"] for row in rows} == {"max_steps", "env_error"}
    tools = [("tool", "calculate"), ("tool", "price"), ("tool", "unknown"), ("limit", "1000")]
    assert api.trajectories("shop", tools)["total"] == 18


@pytest.mark.parametrize("sort", ["step", "reward", "tokens", "steps", "calls"])
def test_rows_are_sorted_and_pages_join_up(api: ViewApi, sort: str) -> None:
    column = {"steps": "num_steps", "calls": "tool_calls"}.get(sort, sort)
    for order in (sort, f"-{sort}"):
        pages = [
            api.trajectories("shop", [("sort", order), ("limit", "7"), ("offset", str(offset))])
            for offset in (0, 7, 14, 21)
        ]
        assert [page["total"] for page in pages] == [20] * 4
        rows = [row for page in pages for row in page["rows"]]
        assert len({row["key"] for row in rows}) == 20
        values = [row[column] for row in rows]
        assert values == sorted(values, reverse=order.startswith("-"))


def test_a_facet_counts_what_the_other_filters_select(api: ViewApi) -> None:
    facets = api.trajectories("shop", [("tool", "price"), ("step", "1"), ("stop_reason", "done")])["facets"]
    assert facets["tools"] == {"price": 4}
    assert api.trajectories("shop", [("tool", "price"), ("step", "1")])["facets"] == {
        "tools": {"price": 4, "calculate": 2},
        "stop_reasons": {"done": 4},
    }


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ([("step", "x")], "step='x'"),
        ([("reward_min", "nan")], "not a number"),
        ([("success", "maybe")], "expected 0 or 1"),
        ([("sort", "name")], "expected one of step, reward"),
        ([("kind", "test")], "expected train or eval"),
        ([("step", "9" * 30)], "out of range"),
        ([("color", "red")], "unknown parameter 'color'; known are"),
        ([("sort", "reward; DROP TABLE files")], "expected one of"),
    ],
)
def test_a_wrong_parameter_is_named(parameters: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_filters(parameters)


# --- searching -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> ViewApi:
    folder = tmp_path_factory.mktemp("texts")
    run = WrittenRun(folder / "texts")
    written = ["The plum costs 46 coins.", "鸡蛋的价格是三元", f"odd {HOSTILE}", "Ünïcode Größe", "nothing"]
    members = [make_trajectory("look", text, member=i, result=f"result{i}") for i, text in enumerate(written)]
    failed = make_trajectory(member=9, error="Traceback: ZeroDivisionError")
    run.write(1, make_group(0, [*members, failed]), make_group(1, [make_trajectory("x", question="A riddle of tea?")]))
    return indexed(folder)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("plum", ["1-1"]),
        ("PLUM coins", ["1-1"]),
        ("coins plum", ["1-1"]),
        ("plu", ["1-1"]),
        ("plu ", []),
        ('"plum costs"', ["1-1"]),
        ('"costs plum"', []),
        ("价格", ["1-2"]),
        ("格价", []),
        ("result3", ["1-4"]),
        ("grosse", []),
        ("größe", ["1-4"]),
        ("alert", ["1-3"]),
        ("zerodivisionerror", ["1-6"]),
        ("riddle", ["1-7"]),
        ("tea x", ["1-7"]),
        ("look nothing", ["1-5"]),
        ("absent", []),
        ('" OR * NOT (', None),
        ("***", None),
    ],
)
def test_a_search_finds_words_of_actions_results_errors_and_prompts(
    texts: ViewApi, text: str, keys: list[str] | None
) -> None:
    found = listed(texts, "texts", text=text)
    assert found == keys if keys is not None else len(found) in (0, 7)


@given(st.text(max_size=40))
def test_no_search_is_an_error(texts: ViewApi, text: str) -> None:
    texts.trajectories("texts", [("text", text)])


@given(st.text(alphabet="ab 价格é", max_size=20))
def test_every_word_of_a_text_is_a_phrase_that_the_text_contains(text: str) -> None:
    words = " ".join(as_words(text).split())
    for phrase in search_phrases(text):
        assert phrase.rstrip("*").strip('"') in words


# --- groups and tasks ------------------------------------------------------------------------------------------------


def test_the_members_of_a_group_are_side_by_side(api: ViewApi) -> None:
    group = api.group("shop", 2, 1, "train")
    assert (group["task_id"], group["step"], group["group_id"], group["num_members"]) == ("task-1", 2, 1, 3)
    assert group["prompt"] == [{"role": "user", "content": "What do 3 eggs cost?"}]
    assert [member["member"] for member in group["members"]] == [0, 1, 2]
    first, last = group["members"][1]["record"]["steps"]
    assert first["tool_calls"] == [{"name": "price", "arguments": {"item": "egg"}, "call_id": "c0"}]
    assert first["results"] == [{"call_id": "c0", "name": "price", "role": "tool", "content": "3"}]
    assert last["text"] == "the price is 1"


def test_one_task_over_the_steps(api: ViewApi) -> None:
    task = api.task("shop", "task-1")
    assert [(step["step"], step["count"], step["reward"]) for step in task["steps"]] == [
        (step, 3, pytest.approx(1 / 3)) for step in (1, 2, 3)
    ]
    assert [row["step"] for row in task["rows"]] == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_failed_rollouts_are_in_no_average_of_a_task(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    members = [make_trajectory("x", reward=1.0), make_trajectory(member=1, stop_reason=StopReason.ENV_ERROR, error="x")]
    run.write(1, make_group(0, members))
    [step] = indexed(tmp_path).task("run", "task-0")["steps"]
    assert (step["count"], step["failed"], step["reward"], step["success"]) == (2, 1, 1.0, 1.0)


def test_a_list_of_many_rows_is_the_same_as_a_loop(tmp_path: Path) -> None:
    generator = random.Random(0)
    run = WrittenRun(tmp_path / "run")
    for step in range(1, 6):
        groups = [
            make_group(
                number,
                [
                    make_trajectory("x", group=number, member=i, task=f"t{number}", reward=generator.random())
                    for i in range(20)
                ],
            )
            for number in range(10)
        ]
        run.write(step, *groups)
    api = indexed(tmp_path)
    rows = api.trajectories("run", [("limit", "1000")])["rows"]
    assert len(rows) == 1000
    page = api.trajectories("run", [("sort", "-reward"), ("reward_max", "0.5"), ("offset", "10"), ("limit", "5")])
    expected = sorted((row["reward"] for row in rows if row["reward"] <= 0.5), reverse=True)
    assert page["total"] == len(expected)
    assert [row["reward"] for row in page["rows"]] == expected[10:15]
