"""docs/architecture.md against the code: the path of the data, and the packages."""

from __future__ import annotations

import re
from pathlib import Path

from agent_r1.runs.folder import RUN_FILES
from tests.unit.test_architecture import PACKAGES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
PATH = TEXT.partition("<!-- row to gradient: begin -->")[2].partition("<!-- row to gradient: end -->")[0]
FILES = re.findall(r"^\| `([^`]+)` \|", PATH, re.MULTILINE)


def test_every_file_from_row_to_gradient_exists() -> None:
    assert len(FILES) > 40
    assert not [file for file in FILES if not (ROOT / file).is_file()]


def test_every_file_from_row_to_gradient_is_named_once() -> None:
    assert sorted(FILES) == sorted(set(FILES))


def test_the_table_of_packages_has_them_in_the_order_of_the_import_test() -> None:
    table = TEXT.partition("\n## Packages\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[2] for line in table.splitlines() if line.startswith("|")][2:]
    listed = [name.rstrip("/") for cell in cells for name in re.findall(r"`(\w+/?)`", cell)]
    assert listed == list(PACKAGES)


def test_every_file_that_the_page_names_by_its_path_exists() -> None:
    """`runs/lock.py` is below `agent_r1/` or below the folder the section is about (`engines/local/`)."""
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", TEXT))
    homes = (ROOT, ROOT / "agent_r1", ROOT / "agent_r1" / "engines" / "local")
    assert not [file for file in named if not any((home / file).is_file() for home in homes)]


def test_the_page_names_every_file_of_a_run() -> None:
    section = TEXT.partition("\n## A run's folder\n")[2].partition("\n## ")[0]
    places = [line.split()[0].removeprefix("runs/<name>/") for line in section.splitlines() if line.startswith("    ")]
    assert not RUN_FILES - {place.partition("/")[0] for place in places}
