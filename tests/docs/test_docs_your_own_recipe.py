"""docs/your_own_recipe.md, command by command in its order, in an empty folder."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from agent_r1.data.tasks import COLUMNS
from tests.helpers.forks import run_python

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "your_own_recipe.md").read_text()
SHORT = ["sft.steps=2", "trainer.steps=2", "rollout.groups_per_step=2", "rollout.group_size=2", "eval.max_tasks=2"]


def follow(folder: Path, *, shortened: bool) -> None:
    """Do what the page says: run its commands, and put its code where it says."""
    commands, code_of_file = r"^    ((?:mkdir|agent-r1|python) [^\n]*)$", r"`(\S+)` becomes\n\n```python\n(.*?)```"
    actions = re.findall(f"{commands}|{code_of_file}", TEXT, re.MULTILINE | re.DOTALL)
    for command, file, code in actions:
        if file:
            assert (folder / file).is_file()
            (folder / file).write_text(code)
            continue
        program, *words = shlex.split(command)
        if program == "mkdir":
            subprocess.run([program, *words], cwd=folder, check=True)
            continue
        if shortened and "pytest" in words:  # tests/integration/test_init.py runs it for every kind
            continue
        is_run = words[0] in ("train", "eval")
        arguments = [*(["-m", "agent_r1.cli"] if program == "agent-r1" else []), *words]
        done = run_python(*arguments, *(SHORT if shortened and is_run else []), cwd=folder)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def last_step(folder: Path, run: str) -> dict[str, float]:
    """The metrics of the last training step; evaluations have lines of their own."""
    lines = map(json.loads, (folder / "runs" / run / "metrics.jsonl").read_text().splitlines())
    steps: list[dict[str, float]] = [line for line in lines if "reward/process" in line]
    return steps[-1]


@pytest.mark.slow
def test_the_page_can_be_followed(tmp_path: Path) -> None:
    follow(tmp_path, shortened=True)
    assert last_step(tmp_path, "lockers")["step"] == 2
    assert last_step(tmp_path, "lockers_costly")["step"] == 2


@pytest.mark.slow
def test_the_page_keeps_its_promises(tmp_path: Path) -> None:
    follow(tmp_path, shortened=False)
    summary = json.loads((tmp_path / "runs" / "lockers" / "summary.json").read_text())
    assert (summary["success_before"] < 0.05, summary["success_after"] > 0.95) == (True, True)
    costly = last_step(tmp_path, "lockers_costly")
    assert costly["reward/process"] == pytest.approx(-0.1, abs=0.02)
    assert costly["reward/success"] > 0.8


def test_every_column_it_names_is_one_the_loader_reads() -> None:
    table = TEXT.partition("| column |")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `(\w+)` \|", table, re.M)
    assert named
    assert set(named) <= set(COLUMNS)


def test_the_readme_points_to_it() -> None:
    assert "(docs/your_own_recipe.md)" in (ROOT / "README.md").read_text()
