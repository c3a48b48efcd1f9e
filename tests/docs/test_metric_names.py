"""Every metric that a page names is one that the library logs, or the environment of a recipe."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent_r1.types import StopReason

ROOT = Path(__file__).parents[2]
FAMILIES = "time|perf|policy|loss|step|episode|offpolicy|critic|curriculum|revisit"
"""Those whose names stand in the code. The others are made of names of rewards, tools, data sources and servers."""
METRIC = re.compile(rf"`((?:{FAMILIES})/\w+)`")
SOURCE = "\n".join(
    path.read_text(encoding="utf-8")
    for folder in ("agent_r1", "recipes")
    for path in sorted((ROOT / folder).rglob("*.py"))
)
MADE = {f"episode/{reason}" for reason in StopReason if reason.is_truncation}
PAGES = {
    path.relative_to(ROOT).as_posix(): names
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("recipes/*/README.md"))]
    if (names := set(METRIC.findall(path.read_text(encoding="utf-8"))))
}


def test_names_are_found() -> None:
    assert sum(map(len, PAGES.values())) > 60
    assert {"time/rollout", "time/update"} <= PAGES["docs/scaling.md"]


@pytest.mark.parametrize("page", PAGES)
def test_every_metric_that_a_page_names_is_logged(page: str) -> None:
    written = {name for name in PAGES[page] if f'"{name}"' in SOURCE or name in MADE}
    assert not PAGES[page] - written
