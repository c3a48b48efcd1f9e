"""`speedrun.sh`: one command per recipe, from nothing to figures of the test rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEEDRUN = str(ROOT / "speedrun.sh")
SHORT = (
    "sft.steps=2 sft.batch_size=2 trainer.steps=1 rollout.groups_per_step=2 rollout.group_size=2 rollout.max_tokens=8 "
    "eval.max_tasks=2 trainer.device=cpu"
)


def speedrun(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "SPEEDRUN_PYTHON": sys.executable,
        "SPEEDRUN_OVERRIDES": SHORT,
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.run([SPEEDRUN, *arguments], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["quickstart", "zoom"])
def test_it_runs_from_nothing_and_skips_what_is_done(recipe: str, tmp_path: Path) -> None:
    first = speedrun(recipe, "rloo", folder=tmp_path)
    assert first.returncode == 0, first.stderr
    assert [part in first.stdout for part in ("2/3", "with rloo", "3/3", "test, ")] == [True] * 4
    second = speedrun(recipe, "rloo", folder=tmp_path)
    assert not any(part in second.stdout for part in ("2/3", "3/3"))
    assert "test, " in second.stdout
    summary = json.loads((tmp_path / "runs" / f"{recipe}_rloo" / "summary.json").read_text())
    assert (summary["steps"], summary["algorithm"]) == (1, "rloo")


def test_it_explains_itself() -> None:
    shown = subprocess.run([SPEEDRUN, "--help"], capture_output=True, text=True, check=True).stdout
    assert "./speedrun.sh [RECIPE] [ALGORITHM]" in shown
    assert "set -euo" not in shown


def test_unknown_recipes_and_algorithms_are_refused_with_those_that_are_known(tmp_path: Path) -> None:
    refused = speedrun("hotpot", folder=tmp_path)
    assert refused.returncode == 2
    recipes = sorted(path.parent.name for path in (ROOT / "recipes").glob("*/base.yaml"))
    assert refused.stderr == f"unknown recipe 'hotpot'. Known: {' '.join(recipes)}\n"
    refused = speedrun("zoom", "gpro", folder=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.startswith("unknown algorithm 'gpro'. Known: ")
