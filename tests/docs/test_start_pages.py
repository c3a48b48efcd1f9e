"""docs/getting_started.md and docs/coming_from.md: their commands and code, in an empty folder; runs are shortened."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_r1.cli import app
from tests.helpers.forks import run_python

ROOT = Path(__file__).parents[2]
START = (ROOT / "docs" / "getting_started.md").read_text()
HOME = (ROOT / "docs" / "index.md").read_text()
README = (ROOT / "README.md").read_text()
SHORT = ["sft.steps=2", "trainer.steps=1", "rollout.groups_per_step=2", "rollout.group_size=2", "rollout.max_tokens=8"]


def commands_of(text: str) -> list[list[str]]:
    lines = re.findall(r"^    (?:pip install agent-r1 && )?agent-r1 ([^\n#]*)", text, re.MULTILINE)
    return [line.split() for line in lines]


def run(folder: Path, *arguments: str) -> str:
    done = run_python(*arguments, cwd=folder)
    assert done.returncode == 0, f"{arguments}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.whole
def test_five_minutes_can_be_followed(tmp_path: Path) -> None:
    """A server is not started here; that its command exists is tested below."""
    for command in commands_of(START):
        if command[0] == "view":
            continue
        is_run = command[0] in ("train", "check") and "--dry-run" not in command
        run(tmp_path, "-m", "agent_r1.cli", *command, *([*SHORT, "eval.max_tasks=2"] if is_run else []))
    named = re.findall(r"^\| `(runs/quickstart/[\w.]+)` \|", START, re.MULTILINE)
    assert len(named) == 4
    assert not [path for path in named if not (tmp_path / path).exists()]
    [code] = re.findall(r"```python\n(.*?)```", START, re.DOTALL)
    (tmp_path / "my_shop.py").write_text(
        code.replace('"trainer.steps": 10', '"trainer.steps": 1, "rollout.max_tokens": 8')
    )
    run(tmp_path, *next(re.finditer(r"^    python (.*)$", START, re.MULTILINE))[1].split())
    assert json.loads((tmp_path / "runs" / "my_shop" / "summary.json").read_text())["steps"] == 1


@pytest.mark.whole
def test_the_snippet_for_people_from_trl_runs(tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "coming_from.md").read_text(), re.DOTALL)
    assert run(tmp_path, "-c", code + "\nprint(config.rollout.group_size, config.algorithm.preset)") == "8 grpo\n"


@pytest.mark.whole
@pytest.mark.parametrize("text", [START, HOME, README], ids=["getting_started", "index", "README"])
def test_every_command_and_its_options_exist(text: str) -> None:
    for command in commands_of(text):
        words = command[:2] if command[0] in ("env", "recipes") and len(command) > 1 else command[:1]
        shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200"})
        assert shown.exit_code == 0, f"{command}: {shown.output}"
        options = [word for word in command if word.startswith("--")]
        assert not [option for option in options if option not in shown.output]
