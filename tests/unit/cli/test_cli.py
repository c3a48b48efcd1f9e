"""The command line itself: help texts, and how fast they come."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from agent_r1.cli import app
from agent_r1.cli.help_text import help_text

COMMANDS = (
    *("train", "demonstrate", "sft", "eval", "check", "plot", "table", "index", "search", "init", "recipes copy"),
    "env serve",
)


def help_of(command: str) -> str:
    result = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.output


def test_the_help_lists_every_command() -> None:
    output = help_of("")
    assert all(command.split()[0] in output for command in COMMANDS)
    assert "agent-r1 init my_shop" in output


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_an_example_of_itself(command: str) -> None:
    output = help_of(command)
    assert "Example" in output
    assert f"agent-r1 {command} " in output


def test_brackets_in_examples_are_shown() -> None:
    assert "sft.data=[demos.jsonl]" in help_of("sft")
    assert "env.tools=[{name: search" in help_of("index")


def test_paragraphs_wrap_at_the_width_of_the_terminal() -> None:
    narrow = CliRunner().invoke(app, ["check", "--help"], env={"COLUMNS": "60"}).output.partition("Examples")[0]
    assert min(len(line.rstrip()) for line in narrow.splitlines()[6:9]) > 40


def test_a_paragraph_becomes_one_line_and_examples_keep_theirs() -> None:
    text = help_text("Tune a model\n    on rows.\n\n      first x=[a]\n      second\n    ")
    assert text == "Tune a model on rows.\n\nfirst x=\\[a]\nsecond"


def test_importing_the_command_line_imports_no_heavy_package() -> None:
    heavy = "{'torch', 'transformers', 'hydra', 'pyarrow', 'numpy', 'omegaconf'}"
    code = f"import sys, agent_r1.cli; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_ctrl_c_at_the_very_start_ends_without_a_traceback() -> None:
    code = """
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "agent_r1.cli.app":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
import agent_r1.cli
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")
