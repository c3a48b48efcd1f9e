"""The quickstart learns on two ranks. Run with `make test-ranks`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.torchrun import Torchrun


@pytest.mark.slow
def test_the_quickstart_learns_on_two_ranks(tmp_path: Path) -> None:
    with Torchrun("train", "quickstart", f"run.folder={tmp_path}") as run:
        assert run.finish(seconds=3600) == 0, run.text
    summary = json.loads((tmp_path / "quickstart" / "summary.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "quickstart" / "metrics.jsonl").read_text().splitlines()]
    failures = {name: value for line in lines for name, value in line.items() if name.startswith("error/") and value}
    print(f"held-out tasks solved: {summary['success_before']:.1%} -> {summary['success_after']:.1%}; {failures=}")
    assert summary["success_after"] >= 0.9
    assert not failures
