"""Pictures in the page of `agent-r1 view`, in a real browser: in messages, among tokens, exported, and broken."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.browser import Browser, started_browser
from tests.helpers.picture_runs import CROP, SCENE, picture_run
from tests.helpers.view_runs import ROOT, served

pytestmark = pytest.mark.whole

SIZES = "[...document.querySelectorAll('.picture')].map(e => [e.naturalWidth, e.naturalHeight])"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with started_browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    picture_run(tmp_path / "zoom")
    return tmp_path


def look(browser: Browser, address: str) -> None:
    """Open the first trajectory of the run."""
    browser.open(f"{address}#/run/zoom/trajectories")
    browser.wait("document.querySelectorAll('table.trajectories tbody tr').length === 2")
    browser.press("j")
    browser.run("document.querySelector('table.trajectories tbody a').click()")
    browser.wait("document.querySelectorAll('.step-card').length === 2")


def test_pictures_are_shown_where_the_model_saw_them(browser: Browser, runs: Path, tmp_path: Path) -> None:
    with served(runs) as address:
        look(browser, f"{address}/")
        browser.wait(f"JSON.stringify({SIZES}) === '[[448,320],[48,32]]'")
        tall = browser.run("return document.querySelectorAll('.picture')[1].getBoundingClientRect().height")
        assert tall == pytest.approx(96, abs=3)  # a small one is shown larger, with its pixels
        browser.click(".color-bar input[type=checkbox]")
        browser.wait("document.querySelectorAll('.image-tokens').length === 2")
        assert [text.strip() for text in browser.texts(".image-tokens")] == ["[image: 64 tokens]", "[image: 16 tokens]"]
        browser.wait("[...document.querySelectorAll('.thumbnail')].every(e => e.naturalWidth > 0)")
        assert "67 prompt tokens" in browser.text(".prompt-tokens h4").lower()
        browser.hover(".image-tokens")
        browser.wait("document.querySelector('.thumbnail').getBoundingClientRect().height > 60")
        browser.wait("!document.getElementById('tip').hidden")
        assert "user" in browser.text("#tip")
        browser.screenshot(tmp_path / "seen.png")
        browser.press("g")
        browser.wait("document.querySelectorAll('.member-result .picture').length === 2")
        assert browser.count(".prompt-card .picture") == 1
        assert browser.problems() == []


def test_an_exported_page_shows_them_without_a_server(browser: Browser, runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "agent_r1.cli", "view", str(runs), "--export", str(page)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    browser.open("about:blank")
    browser.problems()  # of the server that another test ended
    look(browser, page.as_uri())
    browser.wait(f"JSON.stringify({SIZES}) === '[[448,320],[48,32]]'")
    assert browser.problems() == []


def test_pictures_that_are_gone_or_broken_are_named_and_nothing_else_breaks(browser: Browser, runs: Path) -> None:
    images = runs / "zoom" / "trajectories" / "images"
    (images / f"{SCENE.content_hash}.png").unlink()
    whole = CROP.png()
    (images / f"{CROP.content_hash}.png").write_bytes(whole[: len(whole) // 2])
    with served(runs) as address:
        look(browser, f"{address}/")
        browser.wait("document.querySelectorAll('.picture-missing').length >= 1")
        assert browser.texts(".picture-missing")[0] == "image, 448 x 320: cannot be shown"
        assert "What color is the dot?" in browser.text(".step-cards")
        browser.problems()  # the browser reports the missing file itself
