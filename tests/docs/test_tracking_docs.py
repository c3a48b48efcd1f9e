"""docs/tracking.md against the code: its snippets run on a real run."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from agent_r1.config.schema import TrackingConfig
from agent_r1.runs import LoadedRun, Table
from agent_r1.types import StepCredit
from tests.helpers import commands
from tests.helpers.tiny_runs import score_variety, tiny_overrides

TEXT = (Path(__file__).parents[2] / "docs" / "tracking.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_every_key_of_the_section_is_in_the_page() -> None:
    assert not [field.name for field in dataclasses.fields(TrackingConfig) if f"tracking.{field.name}" not in TEXT]


def test_every_field_of_recorded_credit_is_in_the_page() -> None:
    assert not [field.name for field in dataclasses.fields(StepCredit) if f"`{field.name}`" not in TEXT]


def test_what_the_page_says_of_a_loaded_run_exists() -> None:
    section = TEXT.partition("## Runs in Python")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)(?:\(|`)", section.partition("| of a run |")[2])) - {
        "pandas",
        "running",
        "finished",
        "failed",
    }
    assert named >= {"metrics", "evaluations", "trajectories", "credit", "config", "summary", "state"}
    assert not [name for name in named if not hasattr(LoadedRun, name) and not hasattr(Table, name)]


@pytest.mark.whole
def test_the_snippets_run_on_a_recorded_run(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    [own_tracker] = [snippet for snippet in SNIPPETS if "tracker_factories" in snippet]
    (tmp_path / "my_trackers.py").write_text(own_tracker)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = [
        "run.name=quickstart",
        "tracking.record_credit=true",
        "imports=[my_trackers]",
        "tracking.trackers=[csv]",
    ]
    commands.train(*tiny_overrides(folder, model_folder, *settings), quiet=True, reward=score_variety)
    assert "4,reward/outcome," in (folder / "quickstart" / "metrics.csv").read_text()
    monkeypatch.chdir(tmp_path)
    for snippet in SNIPPETS:
        if snippet != own_tracker:
            capsys.readouterr()
            exec(compile(snippet, "docs/tracking.md", "exec"), {})
            assert capsys.readouterr().out
