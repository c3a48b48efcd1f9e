"""docs/chat.md and docs/export.md against the code: every option and command is there, and what they show runs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from agent_r1.cli import app
from agent_r1.inference.terminal.commands import _COMMANDS
from tests.helpers import commands
from tests.helpers.tiny_runs import score_variety, tiny_overrides

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


@pytest.mark.whole
def test_the_commands_and_snippets_run_on_a_trained_run(tmp_path: Path, model_folder: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    overrides = tiny_overrides(runs, model_folder, "run.name=quickstart", "trainer.steps=1", "data.eval=${data.train}")
    commands.train(*overrides, quiet=True, reward=score_variety)
    config = runs / "quickstart" / "config.yaml"
    text = config.read_text().replace(str(ROOT / "recipes"), "recipes").replace("score_variety", "reward_fn:score")
    config.write_text(text)
    shown = re.findall(r"^    ((?:echo .* \| )?agent-r1 (?:chat|export) .*)$", CHAT + EXPORT, re.MULTILINE)
    offline = [line for line in shown if "MODEL" not in line and "--server" not in line and "my_lora_run" not in line]
    assert len(offline) >= 10
    script = "\n".join(f"{line} </dev/null" if not line.startswith("echo") else line for line in offline)
    [snippet] = re.findall(r"```python\n(import asyncio.*?)```", CHAT, re.DOTALL)
    (tmp_path / "snippet.py").write_text(snippet)
    program = f'set -e\nagent-r1() {{ {shlex.quote(sys.executable)} -m agent_r1.cli "$@"; }}\n{script}\n'
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "AGENT_R1_CACHE": str(tmp_path / "cache")}
    for command in (["bash", "-c", program], [sys.executable, "snippet.py"]):
        result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "shopper" / "README.md").is_file()
    assert "StepRecorded" in result.stdout
