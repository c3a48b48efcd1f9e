"""Whatever models, tools and tasks write: in the viewer it is text. Nothing executes, nothing breaks the page."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_r1.types import Group, StopReason, Task, ToolCall, Trajectory
from tests.helpers.browser import Browser, started_browser
from tests.helpers.view_runs import ROOT, MadeRun, failed_trajectory, served

pytestmark = pytest.mark.whole

SCRIPT = (
    "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'><svg onload=\"window.hacked=3\">"
    "<a href='javascript:window.hacked=4'>here</a><style>main{display:none}</style>"
    "<!-- {{constructor.constructor('window.hacked=5')()}}"
)
ANSI = "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x08\x08\x7f"
RTL = "\u202egnp.exe\u202c \u05e9\u05dc\u05d5\u05dd \u2067hidden\u2069 \u200b\ufeff\U000e0041"
NUL = "a\x00b"
LONG = "x" * 1_000_000
ALL = f"{SCRIPT} {ANSI} {RTL} {NUL} \ud800 {LONG[:3000]}"
KEYS = {"hostile/<img src=x onerror=window.hacked=6>": 1.0, "reward/success": 0.5}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with started_browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    run = MadeRun(
        folder / "<img src=x onerror=window.hacked=7>", **{"<b>key</b>": SCRIPT, "model": {"path": SCRIPT[:200]}}
    )
    prompt = ({"role": "system", "content": SCRIPT}, {"role": "user", "content": ALL}, {"role": SCRIPT, "content": RTL})
    task = Task(task_id=f"id {SCRIPT}/{RTL}", prompt=prompt, data_source=SCRIPT)
    call = ToolCall(name=f"tool{SCRIPT}", arguments={SCRIPT: ALL, "nested": {"deep": [SCRIPT]}}, call_id="1")
    first = run.step(
        prompt, (SCRIPT, ANSI, RTL, NUL, LONG), calls=(call,), repairs=(ALL,), parse_error=ALL, final_answer=ALL
    )
    results = (*prompt, first.action.as_message(), {"role": "tool", "name": SCRIPT, "content": LONG + SCRIPT})
    last = run.step(results, (LONG[:30_000],), before=first)
    rollout = Trajectory(
        task_id=task.task_id,
        group_id=0,
        member=0,
        steps=(first, last),
        outcome_reward=-1.5,
        stop_reason=StopReason.DONE,
        data_source=SCRIPT,
        vote=ALL,
        reward_parts={SCRIPT: 1.0},
    )
    others = [failed_trajectory(rollout, ALL + "\n" + LONG)] * 3
    run.write(1, [Group(task=task, group_id=0, trajectories=(rollout, *others))])
    run.log(1, **KEYS)
    run.log(2, **KEYS)
    run.finish([f"step 1: {ALL}"])
    return folder


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    with served(runs) as url:
        yield url


@pytest.fixture(scope="module")
def places(browser: Browser, address: str) -> list[str]:
    """The address of every kind of view, found by following links."""
    page = f"{address}/"
    browser.open(page)
    browser.wait("document.querySelector('.run-name')")
    run = browser.run("return document.querySelector('.run-name').getAttribute('href')")
    browser.open(f"{page}{run}/trajectories")
    browser.wait("document.querySelectorAll('.trajectories tbody tr').length === 4")
    links = "[...document.querySelectorAll('{}')].map(a => a.getAttribute('href'))"
    rollouts = browser.run(f"return {links.format('.trajectories tbody a')}")
    browser.open(f"{page}{rollouts[0]}")
    browser.wait("document.querySelector('.actions a')")
    actions = browser.run(f"return {links.format('.actions a')}")
    return ["#/", "#/?q=hostile", run, f"{run}/config", f"{run}/trajectories", *rollouts[:2], *actions]


@pytest.fixture
def rollout(places: list[str]) -> str:
    return next(place for place in places if "/trajectory/" in place)


def assert_unharmed(browser: Browser, place: str) -> None:
    assert browser.run("return window.hacked") is None, place
    assert browser.problems() == [], place  # also no refusal by the policy: nothing even tried
    assert (
        browser.run(
            "return [...document.querySelectorAll('script:not([src]), iframe, object, [onerror], [onload]')].length"
        )
        <= 4
    )
    assert browser.count("main img, main svg, main style, main script, main a[href^=javascript]") == 0, place
    assert not browser.overflows(), place
    assert "This cannot be shown" not in browser.text("main"), place
    # No direction mark or control character reaches the page: each is shown as a mark.
    marks = "\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u200b\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ufeff"
    hidden = f"return /[{marks}]/.exec(document.body.textContent)?.[0].codePointAt(0)"
    assert browser.run(hidden) is None, place


@pytest.mark.parametrize("width", [1400, 420])
def test_hostile_text_is_only_text_in_every_view(browser: Browser, address: str, places: list[str], width: int) -> None:
    browser.size(width, 900)
    for place in places:
        browser.problems()
        browser.open(f"{address}/{place}")
        browser.wait("document.querySelector('main').children.length && !document.querySelector('main[aria-busy]')")
        assert_unharmed(browser, place)


def test_hostile_text_is_shown_as_it_was_written(browser: Browser, address: str, rollout: str) -> None:
    browser.size(1400, 900)
    browser.open(f"{address}/{rollout}")
    browser.wait("document.querySelector('.step-card')")
    said = browser.text("#step-1 .by-model-turn .tokens")
    assert "<script>window.hacked = 1</script>" in said
    assert "⟨ESC⟩[31mred⟨ESC⟩[0m" in said
    assert "⟨RLO⟩gnp.exe⟨PDF⟩" in said
    assert "שלום" in said
    assert "a⟨NUL⟩b" in said
    assert len(said) < 30_000  # a token of a million letters is cut


def test_a_million_letters_are_read_piece_by_piece(browser: Browser, address: str, rollout: str) -> None:
    browser.size(1400, 900)
    browser.open(f"{address}/{rollout}")
    browser.wait("document.querySelector('.step-card')")
    result = "document.querySelector('#step-1 .by-tool-turn')"
    assert browser.run(f"return {result}.textContent.length") < 5_000
    for _ in range(40):
        if not browser.run(
            f"const b = {result}.querySelector('.more'); if (b && !b.disabled) b.click(); return Boolean(b)"
        ):
            break
        browser.wait(f"!{result}.querySelector('.more:disabled')")
    text = browser.run(f"return {result}.querySelector('.text').textContent")
    assert text == LONG + SCRIPT
    assert_unharmed(browser, rollout)


def test_an_exported_page_of_hostile_text_is_unharmed(
    browser: Browser, runs: Path, places: list[str], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "agent_r1.cli", "view", str(runs), "--export", str(page)]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    for place in places:
        browser.problems()
        browser.open(f"{page.as_uri()}{place}")
        browser.wait("document.querySelector('main').children.length && !document.querySelector('main[aria-busy]')")
        assert_unharmed(browser, place)
