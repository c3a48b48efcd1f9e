"""The tutorials, followed word for word: their files, their commands, their output, their mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.helpers.tutorial_pages import FOLDER, ROOT, Reader, differences, page, steps_of

PAGES = sorted(path.name for path in FOLDER.glob("*.md"))


def metrics_of(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.whole
def test_your_own_tool(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.follow(page("your_own_tool.md"))
    first, *_, last = metrics_of(reader.folder / "runs" / "weekday")
    assert last["tool/weekday/calls"] > first["tool/weekday/calls"] + 0.3
    assert last["reward/success"] > first["reward/success"] + 0.3


@pytest.mark.whole
def test_an_agent_that_sees(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="the page draws with Pillow: pip install 'agent-r1[images]'")
    reader = Reader(tmp_path)
    reader.follow(page("an_agent_that_sees.md"))
    first, *_, last = metrics_of(reader.folder / "runs" / "doors")
    assert last["tool/look/calls"] > first["tool/look/calls"] + 0.2
    assert last["reward/success"] > first["reward/success"] + 0.15


@pytest.mark.whole
def test_your_own_environment(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.follow(page("your_own_environment.md"))
    first, *_, last = metrics_of(reader.folder / "runs" / "cellar")
    assert last["reward/success"] > first["reward/success"] + 0.25
    assert last["episode/steps"] < first["episode/steps"]


@pytest.mark.whole
def test_your_own_flow(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.follow(page("your_own_flow.md"))
    first, *_, last = metrics_of(reader.folder / "runs" / "second_look")
    assert last["flow/honest"] > first["flow/honest"] + 0.25
    assert last["reward/success"] > first["reward/success"] + 0.2


@pytest.mark.whole
def test_your_own_algorithm(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.follow(page("your_own_algorithm.md"))
    assert metrics_of(reader.folder / "runs" / "shop")[-1]["step"] == 2


@pytest.mark.whole
def test_existing_agent(tmp_path: Path) -> None:
    pytest.importorskip("openai", reason="the page's agent is on the openai client: pip install 'agent-r1[dev]'")
    reader = Reader(tmp_path)
    reader.follow(page("existing_agent.md"))
    first, *_, last = metrics_of(reader.folder / "runs" / "boxes")
    assert last["reward/success"] > first["reward/success"] + 0.3
    assert last["episode/steps"] > first["episode/steps"]


def test_the_readme_links_every_tutorial_and_every_link_of_a_tutorial_leads_somewhere() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(PAGES) == 6
    assert not [name for name in PAGES if f"(docs/tutorials/{name})" not in readme]
    links = [link for name in PAGES for link in re.findall(r"\]\(([^)]+)\)", page(name))]
    assert not [link for link in links if not (FOLDER / link).exists()]


@pytest.mark.parametrize("name", PAGES)
def test_a_task_is_about_a_page_of_code(name: str) -> None:
    before_mistakes = page(name).partition("## What can go wrong")[0]
    files = [step for step in steps_of(before_mistakes) if isinstance(step, tuple)]
    lines = [line for _, body in files for line in body.splitlines() if line.strip()]
    assert len(lines) <= 120


@pytest.mark.parametrize(
    ("shown", "printed", "about", "agree"),
    [
        (["a", "b"], "a\nb\n", False, True),
        (["a"], "a\nb\n", False, False),
        (["a", "...", "d"], "a\nb\nc\nd\n", False, True),
        (["a", "..."], "a\nb\n", False, True),
        (["...", "d"], "a\nb\n", False, False),
        (["reward 0.5"], "reward 0.6", False, False),
        (["reward 0.5"], "reward 0.6", True, True),
        (["reward 0.5"], "reward 0.9", True, False),
        (["step 8/8"], "step 7/8", True, False),
        (["reward 0.5 ..."], "reward 0.6  calls 2  1.3 s", True, True),
        (["reward 0.5 ..."], "regret 0.5  calls 2", True, False),
    ],
)
def test_output_is_compared_as_the_reader_would(shown: list[str], printed: str, about: bool, agree: bool) -> None:
    assert (differences(shown, printed, about=about) == "") is agree
