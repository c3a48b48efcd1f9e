"""Wrong commands: one clear error each."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_r1.cli.app import app
from agent_r1.web import listen


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("{folder}/nowhere",), "nowhere does not exist"),
        (("{model}", "--key-env", "UNSET_VARIABLE"), "UNSET_VARIABLE, which --key-env names, is not set"),
        (("{model}", "--recipe", "{folder}/nowhere"), "nowhere"),
        (("{model}", "--max-running", "0"), "--max-running"),
        (("{model}", "--request-seconds", "nan"), "--request-seconds"),
        (("{model}", "rollout.max_tokns=3"), "max_tokns"),
        (("{model}", "--step", "3"), "is a model, and only a run has checkpoints"),
        (("{folder}",), "neither a run"),
        (("{model}", "--host", "300.1.1.1"), "cannot listen on 300.1.1.1"),
    ],
    ids=str,
)
def test_a_wrong_command_is_one_clear_error(
    model_folder: Path, tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    filled = [argument.format(model=model_folder, folder=tmp_path) for argument in arguments]
    result = CliRunner().invoke(app, ["serve", *filled, "--port", "0"])
    assert result.exit_code != 0
    shown = " ".join(result.output.replace("│", " ").split())
    assert reason in shown
    assert "Traceback" not in result.output


def test_a_taken_port_is_told(model_folder: Path) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["serve", str(model_folder), "--port", str(port)])
    assert f"cannot listen on 127.0.0.1:{port}" in " ".join(result.output.split())
