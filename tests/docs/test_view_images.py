"""The pictures of docs/view.md, taken of real runs of the quickstart.

AGENT_R1_WRITE_IMAGES=1 python -m pytest tests/docs/test_view_images.py -m slow      # renews docs/images/view_*.png
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.helpers.browser import Browser, started_browser
from tests.helpers.view_runs import ROOT, served

IMAGES = ROOT / "docs" / "images"
MAX_BYTES = 200_000
RUNS = {
    "grpo_seed_0": ["trainer.seed=0"],
    "grpo_seed_1": ["trainer.seed=1"],
    "ppo": ["algorithm=ppo"],
}


def test_every_picture_of_the_page_is_there_and_small() -> None:
    named = set(re.findall(r"\(images/(view_\w+\.png)\)", (ROOT / "docs" / "view.md").read_text()))
    files = {path.name: path.stat().st_size for path in IMAGES.glob("view_*.png")}
    assert named == files.keys()
    assert named
    assert all(size < MAX_BYTES for size in files.values()), files


@pytest.mark.slow
def test_the_pictures_can_be_taken_of_real_runs(tmp_path: Path) -> None:
    for name, settings in RUNS.items():
        settings = [*settings, f"run.name={name}", "trainer.steps=8", "eval.every=4", "tracking.record_credit=true"]
        command = [sys.executable, "-m", "agent_r1.cli", "train", str(ROOT / "recipes" / "quickstart"), *settings]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(command, check=True, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    take_all(tmp_path / "runs", IMAGES if os.environ.get("AGENT_R1_WRITE_IMAGES") else tmp_path, tmp_path / "profile")


def take_all(runs: Path, folder: Path, profile: Path) -> None:
    """Take every picture."""
    folders = [runs / name for name in RUNS]
    with served(*folders) as url, started_browser(profile, width=1240, height=800) as browser:
        wrong = listed(url, "ppo", "step=2&success=0&kind=train")[0]
        mixed = next(row for row in listed(url, "grpo_seed_0", "step=2&success=0&kind=train") if row["member"] > 0)
        group = f"#/run/grpo_seed_0/group/train/2/{mixed['group_id']}"
        take(browser, f"{url}/#/?smooth=0.3", folder / "view_runs.png", ready=".panel canvas")
        place = "#/run/grpo_seed_0/trajectories?kind=train&success=0&sort=-tokens"
        take(browser, f"{url}/{place}", folder / "view_trajectories.png", ready=".trajectories tbody tr")
        take(browser, f"{url}/{group}", folder / "view_group.png", ready=".member-head")
        browser.prefer("dark")
        place = f"#/run/ppo/trajectory/{wrong['key']}?color=advantage"
        take(browser, f"{url}/{place}", folder / "view_trajectory.png", ready=".tokens .above, .tokens .below")
        assert browser.problems() == []


def listed(url: str, run: str, query: str) -> list[dict[str, Any]]:
    """The trajectories of a run, once they are indexed."""
    while True:
        with urllib.request.urlopen(f"{url}/api/runs/{run}/trajectories?{query}") as answer:
            found = json.load(answer)
        if found["indexed"]:
            return list(found["rows"])


def take(browser: Browser, address: str, path: Path, *, ready: str) -> None:
    """Open a view and write what is seen."""
    browser.open(address)
    browser.wait(f"document.querySelector('{ready}') && !document.querySelector('[aria-busy]')")
    browser.run("return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    browser.screenshot(path)
    with Image.open(path) as image:
        image.convert("RGB").save(path, optimize=True)
    assert path.stat().st_size < MAX_BYTES
