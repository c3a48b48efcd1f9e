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


NUMBER = r"\d[\d,.]*|one|two|three|four|five|six|eight|ten|once|twice|several|many"
COUNTED = (
    r"tokens|steps|turns|calls|rollouts|members|rows|tasks|updates|prompts|ids|ratios|rewards|values|passes|copies"
)
PER = (
    r"step|episode|task|group|token|turn|row|batch|trajectory|rollout|call|update|member|prompt|request|run|seed|layer"
)
LINKS = (
    r"of|in|on|at|to|for|from|with|without|over|after|before|across|within|as|and|or|than|when|that|if|is|was|has|have"
    r"|follow|share|such|which"
)
GAP = r"(?:[ \t]+|[ \t]*\n[ \t#]*)"
"""Between words of one paragraph."""
FOR_PER = re.compile(
    rf"\b(?:(?:{NUMBER})(?:{GAP}(?!(?:{LINKS})\b)[\w-]+){{0,2}}|{COUNTED}){GAP}an?{GAP}(?:{PER})(?=[.,;:)|]|{GAP}(?:and|or)\b)",
    re.IGNORECASE,
)
"""`one ratio a step.`, `8 tool calls an episode,`, `Tokens a turn.`: a count, a unit, and what should be `per step`. A
verb or a link between them means something else: `one row of a file`, `tokens a request samples`."""


@pytest.mark.parametrize(
    "text", ["one ratio a step, the geometric mean", "8 tool calls an episode.", "Tokens a turn.", "one a token.\n"]
)
def test_a_step_for_per_step_is_found(text: str) -> None:
    assert FOR_PER.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "one row of a batch.",
        "Tokens a request samples before the host reads them",
        "three failures in a row.",
        "one ratio per step.",
        "several updates follow a rollout by hours",
        "number of blocks a group gathers",
    ],
)
def test_other_uses_of_a_step_are_not(text: str) -> None:
    assert not FOR_PER.search(text)


@pytest.mark.whole
def test_no_text_says_a_step_for_per_step() -> None:
    found = {str(path.relative_to(ROOT)): FOR_PER.findall(path.read_text()) for path in FILES}
    assert not {name: hits for name, hits in found.items() if hits}
