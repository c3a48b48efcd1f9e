"""Words that a reader has to translate are nearly gone from code and documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WHERE = ("agent_r1", "recipes", "benchmarks", "examples", "docs")
FILES = [
    path
    for folder in WHERE
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".md", ".yaml") and path != Path(__file__)
] + [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "pyproject.toml")]

AT_MOST = {"mend": 0, "mended": 0, "afresh": 1, "in vain": 0, "nobody": 0, "go on": 8, "goes on": 0}
"""How often each stands in all files together. Left are texts that models read and a message between processes."""


def count(word: str) -> dict[str, int]:
    pattern = re.compile(rf"\b{word}\b", re.IGNORECASE)
    counts = {str(path.relative_to(ROOT)): len(pattern.findall(path.read_text())) for path in FILES}
    return {name: number for name, number in counts.items() if number}


@pytest.mark.parametrize("word", AT_MOST)
def test_a_word_to_avoid_is_rare(word: str) -> None:
    found = count(word)
    assert sum(found.values()) <= AT_MOST[word], f"'{word}' stands {sum(found.values())} times: {found}"
