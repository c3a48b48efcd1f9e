"""docs/replay.md, held against the command."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from agent_r1.cli import app
from agent_r1.training.replay.replay import REPLAYABLE

TEXT = (Path(__file__).parents[2] / "docs" / "replay.md").read_text()


def test_every_option_of_the_command_is_on_the_page_and_every_one_of_the_page_exists() -> None:
    shown = CliRunner().invoke(app, ["replay", "--help"], env={"COLUMNS": "200"}).output
    options = set(re.findall(r"(--[a-z][a-z-]+)", shown)) - {"--help"}
    assert set(re.findall(r"(--[a-z][a-z-]+)", TEXT)) == options


def test_the_sections_that_can_be_changed_are_on_the_page() -> None:
    assert not [section for section in REPLAYABLE if f"`{section}" not in TEXT]
