"""docs/chat.md and docs/export.md against the code: every option and command is there, and what they show runs."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import agent_r1
from agent_r1.cli import app
from agent_r1.inference.terminal.commands import _COMMANDS
from agent_r1.registry import load_module
from tests.helpers import commands
from tests.helpers.tiny_runs import tiny_overrides

ROOT = Path(__file__).parents[2]
CHAT, EXPORT = ((ROOT / "docs" / f"{name}.md").read_text() for name in ("chat", "export"))


def options_of(command: str) -> set[str]:
    click = typer.main.get_command(app).commands[command]  # type: ignore[attr-defined]
    return {name for parameter in click.params for name in parameter.opts if name.startswith("--")} - {"--help"}


@pytest.mark.parametrize(("command", "text"), [("chat", CHAT), ("export", EXPORT)])
def test_every_option_is_in_the_page_and_every_option_of_the_page_exists(command: str, text: str) -> None:
    lines = [line for line in text.splitlines() if f"agent-r1 {command}" in line or f"agent-r1 {command}" not in text]
    used = {word for line in lines for word in re.findall(r"--[a-z-]+", line)}
    assert used <= options_of(command)
    assert not [option for option in options_of(command) if option not in text]


def test_every_slash_command_is_in_the_page_and_every_one_of_the_page_exists() -> None:
    listed = re.findall(r"^\| `/(\w+)", CHAT, re.MULTILINE)
    assert listed == list(_COMMANDS)


MY_SHOP = """
import agent_r1

@agent_r1.tool
async def stock(item: str) -> str:
    \"\"\"How many there are of one item.\"\"\"
    return "4"

def correct(task, episode):
    return float(episode.answer == task.ground_truth)
"""


def train_from_a_program(folder: Path, runs: Path, model_folder: Path) -> None:
    """A run whose tool and reward are objects of `my_shop.py`, a file of the current folder."""
    (folder / "my_shop.py").write_text(MY_SHOP)
    my_shop = load_module("my_shop")
    _, *overrides = tiny_overrides(runs, model_folder, "run.name=my_shop", "trainer.steps=1")
    agent_r1.train(
        data=[{"question": f"{days} days?", "answer": str(4 * days)} for days in range(4)],
        tools=[my_shop.stock, "calculate"],
        reward=my_shop.correct,
        overrides=[key for key in overrides if not key.startswith("data.")],
        quiet=True,
    )


@pytest.mark.whole
def test_the_commands_and_snippets_run_on_a_trained_run(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENT_R1_CACHE", str(tmp_path / "cache"))
    _, *overrides = tiny_overrides(runs, model_folder, "run.name=quickstart", "trainer.steps=1")
    commands.train("recipes/quickstart", *overrides, "data.eval=${data.train}", quiet=True)
    monkeypatch.syspath_prepend(tmp_path)
    train_from_a_program(tmp_path, runs, model_folder)
    shown = re.findall(r"^    ((?:echo .* \| )?agent-r1 (?:chat|export) .*)$", CHAT + EXPORT, re.MULTILINE)
    offline = [line for line in shown if "MODEL" not in line and "--server" not in line and "my_lora_run" not in line]
    assert len(offline) >= 10
    for line in offline:
        said, _, command = line.rpartition("agent-r1 ")
        result = CliRunner().invoke(app, shlex.split(command), input=said)
        assert result.exit_code == 0, f"{line}\n{result.output}"
    del sys.modules["my_shop"]
    assert "## Figures" in (tmp_path / "shopper" / "README.md").read_text()
    [snippet] = re.findall(r"```python\n(import asyncio.*?)```", CHAT, re.DOTALL)
    capsys.readouterr()
    exec(compile(snippet, "docs/chat.md", "exec"), {})
    assert "StepRecorded" in capsys.readouterr().out
