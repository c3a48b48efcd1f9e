"""docs/scaling/planning.md, held against the command and the code."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from agent_r1.cli import app
from agent_r1.planning.record import MAX_STEPS, MIN_STEPS
from tests.integration.test_planning import TOLERANCE

TEXT = (Path(__file__).parents[2] / "docs" / "scaling" / "planning.md").read_text()


def test_every_option_of_the_command_is_on_the_page_and_every_one_of_the_page_exists() -> None:
    shown = CliRunner().invoke(app, ["plan", "--help"], env={"COLUMNS": "200"}).output
    options = set(re.findall(r"(--[a-z][a-z-]+)", shown)) - {"--help", "--dry-run"}
    assert set(re.findall(r"(--[a-z][a-z-]+)", TEXT)) == options


def test_its_figures_are_those_of_the_code() -> None:
    assert f"agree within {TOLERANCE:.0%}".replace("%", " %") in TEXT
    assert (MAX_STEPS, MIN_STEPS + 1) == (8, 3)
    assert "The last eight recorded steps" in TEXT
    assert "any run of three steps or more" in TEXT
