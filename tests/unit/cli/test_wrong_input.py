"""Wrong input to commands: one message that says what to do, and no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_r1.cli import app
from agent_r1.errors import AgentR1Error
from agent_r1.version import __version__


def output_of(*words: str, code: int = 2, columns: int = 200) -> str:
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": str(columns)})
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def a_run(folder: Path, *, config: str = "trainer: {steps: 2}\n") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config)
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "reward/outcome": 0.5, "time/step": 60.0}) + "\n")
    return folder


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_version_is_printed() -> None:
    assert output_of("--version", code=0) == f"agent-r1 {__version__}\n"


def test_the_first_steps_of_the_help_fit_a_line_and_find_the_recipe_that_init_wrote() -> None:
    help_ = output_of("--help", code=0, columns=80)
    steps = [line.strip() for line in help_.splitlines() if line.strip().startswith("agent-r1 ")]
    assert all("#" in step and not step.endswith("#") for step in steps)
    assert "agent-r1 check my_shop " in help_
    assert "recipes/my_shop" not in help_


def test_a_folder_of_runs_is_no_run_and_its_runs_are_named() -> None:
    a_run(Path("runs/grpo"))
    assert "It holds runs: runs/grpo." in output_of("table", "runs")
    assert "Did you mean runs/grpo?" in output_of("table", "grpo")


def test_a_table_needs_no_wide_terminal() -> None:
    a_run(Path("runs/a_run_with_a_long_name"))
    wide, narrow = (output_of("table", "runs/a_run_with_a_long_name", code=0, columns=width) for width in (200, 60))
    assert len(wide.splitlines()) == 6
    assert "a_run_with_a_long_name" in narrow
    assert "…" not in narrow
    assert max(map(len, narrow.splitlines())) <= 60


@pytest.mark.parametrize("config", ["a: [\n", "- a list\n", "\t"])
def test_a_damaged_configuration_is_one_message(config: str) -> None:
    run = a_run(Path("runs/damaged"), config=config)
    assert "the run damaged is not a configuration" in " ".join(output_of("table", str(run)).split())


@pytest.mark.whole
def test_a_figure_that_cannot_be_written_is_one_message() -> None:
    pytest.importorskip("matplotlib")
    run = a_run(Path("runs/grpo"))
    Path("taken").touch()
    assert "taken/a.png cannot be written" in output_of("plot", str(run), "--out", "taken/a.png")


def test_a_place_that_cannot_be_written_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert output_of("init", "my_shop") == "error: my_shop: Permission denied\n"


def test_a_recipe_does_not_take_the_name_of_an_installed_package() -> None:
    assert "installed package" in output_of("init", "typer")
    assert not Path("typer").exists()


def test_advice_names_no_option_that_the_command_lacks() -> None:
    output_of("recipes", "copy", "quickstart", "mine", code=0)
    assert "--into" not in output_of("recipes", "copy", "quickstart", "mine")


def test_an_empty_question_is_refused_before_a_model_is_loaded() -> None:
    assert "the question is empty" in output_of("chat", "MODEL", "--question", "  ")


@pytest.mark.whole
def test_a_value_of_another_type_is_named_by_its_key() -> None:
    from agent_r1.config import Config, load_config

    for base in ("quickstart", Config()):
        with pytest.raises(AgentR1Error) as caught:
            load_config(base, ["trainer.steps=abc"])
        assert str(caught.value) == (
            "trainer.steps cannot be used: Value 'abc' of type 'str' could not be converted to Integer"
        )


def agent_r1(command: str, **variables: str) -> tuple[int, str]:
    """The exit code of a shell's command line and what it wrote to standard error."""
    script = f"set -o pipefail; {sys.executable} -m agent_r1.cli {command}"
    environment = {**os.environ, **variables}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, check=False)
    return done.returncode, done.stderr


@pytest.mark.whole
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_the_output_is_one_message() -> None:
    assert agent_r1("recipes > /dev/full") == (2, "error: the output: No space left on device\n")


@pytest.mark.whole
def test_a_reader_that_leaves_is_not_blamed_on_the_recipe() -> None:
    """`head` must be gone before the long output comes: `true` reads nothing at all."""
    code, told = agent_r1("train quickstart --dry-run | true")
    assert (code, told.replace("\n", "")) == (
        1,
        "recipe: 'quickstart' of Agent-R1; to edit it: agent-r1 recipes copy quickstart",
    )


@pytest.mark.whole
def test_letters_that_the_terminal_lacks_are_spelled_out() -> None:
    a_run(Path("runs/türkis"))
    assert agent_r1("table runs/türkis --md", PYTHONIOENCODING="ascii") == (0, "")
