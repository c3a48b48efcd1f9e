"""docs/view.md: its addresses, fields, options and examples are those of the program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs the extra view")

from agent_r1.cli.app import app
from agent_r1.view import Catalog, ViewApi
from agent_r1.view.index.filters import parse_filters
from agent_r1.view.server import _answers
from tests.helpers.viewed_runs import shop_run

PAGE = (Path(__file__).parents[2] / "docs" / "view.md").read_text()
API = PAGE.partition("## The API")[2]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> ViewApi:
    folder = tmp_path_factory.mktemp("docs")
    shop_run(folder / "shop")
    made = ViewApi(Catalog([folder]))
    made.run("shop").index.update()
    return made


def words(text: str) -> set[str]:
    return set(re.findall(r'"(\w+)"', text))


def test_every_address_is_documented_and_every_documented_address_exists(api: ViewApi) -> None:
    def plain(address: str) -> str:
        return re.sub(r"\{[^}]*\}", "{}", address)

    documented = {plain(address) for address in re.findall(r"`(/api/[^`?\s]*)", API)}
    existing = {plain(address) for address in _answers(api)} | {
        "/api/live",
        "/api/runs/{}/live",
        "/api/runs/{}/images/{}",
    }
    assert documented == existing


def test_every_filter_is_documented() -> None:
    table = API.partition("| parameter | selects |")[2].partition("\n\n")[0]
    documented = {
        name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1] if "|" in row else "")
    }
    for name in documented:
        parse_filters([(name, {"sort": "step", "kind": "train"}.get(name, "1"))])
    with pytest.raises(ValueError, match="known are") as refused:
        parse_filters([("unknown", "1")])
    assert documented == set(str(refused.value).partition("known are ")[2].split(", "))


def test_the_fields_of_a_run_are_documented(api: ViewApi) -> None:
    table = API.partition("| field | content |")[2].partition("\n\n")[0]
    documented = {
        name for row in table.splitlines() if "|" in row for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert documented == set(api.runs()["runs"][0])


def test_the_fields_of_rows_records_and_steps_are_documented(api: ViewApi) -> None:
    row = api.trajectories("shop", [])["rows"][0]
    listed = API.partition("A row has\n\n")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == set(row)
    record = api.trajectory("shop", "2-2")
    written = API.partition("-> one trajectory:")[2].partition("a step being")[0]
    assert set(record) - set(row) <= words(written)
    step = API.partition("a step being")[2].partition("`messages` are")[0]
    assert set(record["steps"][0]) <= words(step)
    assert set(record["steps"][0]["tokens"][0]) <= words(step)


def test_the_options_of_the_command_are_documented() -> None:
    table = PAGE.partition("| option | default | meaning |")[2].partition("\n\n")[0]
    command = next(entry for entry in app.registered_commands if entry.name == "view")
    assert command.callback is not None
    options = {name.replace("_", "-") for name in command.callback.__annotations__} - {"return", "runs", "browser"}
    assert set(re.findall(r"`--([\w-]+)", table)) == options | {"no-browser"}
