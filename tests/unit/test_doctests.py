"""Every example in a docstring gives what it says."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "agent_r1" / "scaffold" / "templates"
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for folder in ("agent_r1", "recipes")
    for path in (ROOT / folder).rglob("*.py")
    if TEMPLATES not in path.parents and ">>> " in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings_hold(name: str) -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, tried = doctest.testmod(importlib.import_module(name), optionflags=flags)
    assert tried > 0
    assert failed == 0
