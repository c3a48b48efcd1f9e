"""`agent-r1 view --export`: one file, with everything inside, in which text stays text."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from agent_r1.errors import DataError
from agent_r1.view import Catalog, ViewApi
from agent_r1.view.export import build_page, collect, write_page
from agent_r1.view.index.query import whole_groups
from agent_r1.view.page_files import page_files
from tests.helpers.viewed_runs import HOSTILE, WrittenRun, make_group, make_trajectory, shop_run

PAGE = {
    "index.html": b'<html><head>\n<link rel="icon" href="/static/i.svg" type="image/svg+xml">\n'
    b'<link rel="stylesheet" href="/static/a.css">\n<script src="/static/js/first.js"></script>\n'
    b'<script type="module" src="/static/js/main.js"></script>\n</head><body>text</body></html>',
    "i.svg": b"<svg/>",
    "a.css": b"a { color: red } /* </style><script>alert(1)</script> */",
    "js/first.js": b'document.title = "</script><script>alert(1)</script>";',
    "js/main.js": b'import { a } from "./a.js"; import "./b.js"; await import("./a.js"); export { b } from "./b.js";',
    "js/a.js": b"export const a = 1;",
    "js/b.js": b'export const b = "./a.js";',
}


class Elements(HTMLParser):
    """The elements of a page, as a browser's parser sees them."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=False)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags:
            self.texts.append((self.tags[-1][0], data))

    def scripts(self) -> list[tuple[dict[str, str | None], str]]:
        contents = iter([text for tag, text in self.texts if tag == "script" and text.strip()])
        return [(attributes, next(contents)) for tag, attributes in self.tags if tag == "script"]


@pytest.fixture
def api(tmp_path: Path) -> ViewApi:
    shop_run(tmp_path / "runs" / "shop")
    hostile = WrittenRun(tmp_path / "runs" / "hostile")
    hostile.write(1, make_group(0, [make_trajectory(HOSTILE, "b", task=HOSTILE, question=HOSTILE)]))
    return ViewApi(Catalog([tmp_path / "runs"]))


def data_of(page: str) -> Any:
    [content] = [text for attributes, text in Elements(page).scripts() if attributes.get("id") == "embedded-data"]
    return json.loads(content)


def test_the_data_are_those_of_the_api(api: ViewApi) -> None:
    data = data_of(build_page(collect(api, 200), PAGE))
    assert [run["id"] for run in data["runs"]] == ["hostile", "shop"]
    assert data["metrics"]["shop"] == api.metrics("shop", None)
    assert data["config"]["shop"]["config"]["trainer.seed"] == 0
    shop = data["trajectories"]["shop"]
    assert shop["total"] == len(shop["rows"]) == 20
    held, whole = shop["records"]["2-2"], api.trajectory("shop", "2-2")
    assert held["steps"][0]["tokens"][0] == {"id": 0, "text": None, "action": False}
    assert held["steps"][1]["tokens"][-1] == {"id": 9, "text": None, "logprob": -0.3, "writer": "model", "action": True}
    for step in (*held["steps"], *whole["steps"]):
        step["tokens"] = len(step["tokens"])
    assert held == whole
    assert all("What do" in row["search"] for row in shop["rows"] if row["task_id"] in ("task-0", "task-1"))


def test_hostile_text_is_data_and_nothing_else(api: ViewApi) -> None:
    page = build_page(collect(api, 200), PAGE)
    elements = Elements(page)
    assert [tag for tag, _ in elements.tags if tag in ("img", "iframe")] == []
    assert len([tag for tag, _ in elements.tags if tag == "script"]) == 4
    assert data_of(page)["trajectories"]["hostile"]["records"]["1-1"]["steps"][0]["text"] == HOSTILE


def test_nothing_is_loaded_and_only_the_own_scripts_may_run() -> None:
    page = build_page({"runs": []}, PAGE)
    elements = Elements(page)
    addresses = [attributes.get(name) for _, attributes in elements.tags for name in ("src", "href")]
    assert all(address.startswith("data:") for address in addresses if address)
    [policy] = [a["content"] for tag, a in elements.tags if tag == "meta" and "http-equiv" in a]
    policy = html.unescape(str(policy))
    assert policy.startswith("default-src 'none'; script-src data: 'sha256-")
    assert "unsafe" not in policy
    for attributes, content in elements.scripts():
        if attributes.get("type") != "application/json":
            digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in policy


def test_modules_import_each_other_by_the_names_of_the_import_map() -> None:
    page = build_page({}, PAGE)
    [(_, content)] = [entry for entry in Elements(page).scripts() if entry[0].get("type") == "importmap"]
    imports = json.loads(content)["imports"]
    assert set(imports) == {f"agent-r1/js/{name}.js" for name in ("a", "b", "first", "main")}
    main = base64.b64decode(imports["agent-r1/js/main.js"].partition(",")[2]).decode()
    assert re.findall(r'"([^"]+)"', main) == [f"agent-r1/js/{name}.js" for name in "abab"]
    assert base64.b64decode(imports["agent-r1/js/b.js"].partition(",")[2]) == PAGE["js/b.js"]


def test_the_page_of_this_package_refers_only_to_its_own_files() -> None:
    files = page_files()
    page = build_page({}, files)
    assert "/static/" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    for name, content in files.items():
        if name.endswith(".js"):
            for imported in re.findall(rb'from "\./([^"]+)"', content):
                assert f"js/{imported.decode()}" in files


def test_whole_groups_spread_over_the_steps_are_chosen(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    for step in range(1, 17):
        run.write(step, make_group(0, [make_trajectory("x", member=member) for member in range(4)]))
    api = ViewApi(Catalog([run.path]))
    viewed = api.run("run")
    viewed.index.update()
    with viewed.index.reading() as connection:
        for count in (0, 3, 4, 17, 64, 1000):
            groups = whole_groups(connection, count)
            assert all(len(group) == 4 for group in groups)
            assert sum(map(len, groups)) == min(64, count // 4 * 4)
    rows = collect(api, 16)["trajectories"]["run"]["rows"]
    assert sorted({row["step"] for row in rows}) == [1, 5, 9, 13]


def test_a_file_is_written_whole_and_a_folder_is_refused(api: ViewApi, tmp_path: Path) -> None:
    said, _ = write_page(api, tmp_path / "page.html", max_trajectories=5)
    assert said.startswith(f"{tmp_path / 'page.html'} (")
    assert data_of((tmp_path / "page.html").read_text())["format"] == 1
    with pytest.raises(DataError, match="is a folder"):
        write_page(api, tmp_path, max_trajectories=5)


def test_what_could_not_be_read_is_named(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    run.write(1, make_group(0, [make_trajectory("x", member=member) for member in range(2)]))
    metrics = run.path / "metrics.jsonl"

    def left_out() -> list[str]:
        return write_page(ViewApi(Catalog([run.path])), tmp_path / "page.html", max_trajectories=5)[1]

    metrics.write_text('{"step": 1, "reward/success": 1.0}\n{broken\n')
    assert left_out() == ["run: 1 line of metrics.jsonl could not be read"]
    metrics.unlink()
    metrics.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text("{}")
    [problem] = left_out()
    assert problem.startswith("run: ")
    assert "metrics.jsonl" in problem


def test_a_page_that_would_be_huge_is_refused(api: ViewApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_r1.view.export._MAX_DATA", 100)
    with pytest.raises(DataError, match="smaller --trajectories"):
        collect(api, 200)
