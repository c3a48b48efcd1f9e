"""docs/check.md: its Python is run, and its table names the checks that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.forks import run_python

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "check.md").read_text()


@pytest.mark.whole
def test_the_parts_alone_are_good() -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)[-1]
    done = run_python("-c", code, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n[]\n"


def test_the_table_and_the_example_name_the_same_checks() -> None:
    table = re.findall(r"^\| ([a-z ]+) \|", PAGE, flags=re.MULTILINE)[1:]
    example = re.findall(r"^ +ok  ([a-z ]+)", PAGE, flags=re.MULTILINE)
    assert [title for title in example if title != "model"] == table
