"""docs/tracking.md against the code: its snippets run on a real run."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from agent_r1.config.schema import TrackingConfig
from agent_r1.types import StepCredit
from tests.helpers import commands
from tests.helpers.tiny_runs import score_variety, tiny_overrides

TEXT = (Path(__file__).parents[2] / "docs" / "tracking.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_every_key_of_the_section_is_in_the_page() -> None:
    assert not [field.name for field in dataclasses.fields(TrackingConfig) if f"tracking.{field.name}" not in TEXT]


def test_every_field_of_recorded_credit_is_in_the_page() -> None:
    assert not [field.name for field in dataclasses.fields(StepCredit) if f"`{field.name}`" not in TEXT]


@pytest.mark.whole
def test_the_snippets_run_on_a_recorded_run(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    overrides = tiny_overrides(folder, model_folder, "run.name=quickstart", "tracking.record_credit=true")
    commands.train(*overrides, quiet=True, reward=score_variety)
    monkeypatch.chdir(tmp_path)
    for snippet in SNIPPETS:
        capsys.readouterr()
        exec(compile(snippet, "docs/tracking.md", "exec"), {})
        assert capsys.readouterr().out
