"""A tracker of one's own is one file and a name."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from agent_r1.errors import ConfigError
from agent_r1.runs.tracking import read_metrics
from tests.helpers import commands
from tests.helpers.tiny_runs import score_variety, tiny_overrides

MY_TRACKER = """
from agent_r1.runs import tracker_factories


class CsvTracker:
    def __init__(self, path):
        self.file = path.open("w")

    def log(self, step, metrics):
        self.file.write(f"{step},{len(metrics)}\\n")

    def close(self):
        self.file.write("closed,\\n")
        self.file.close()


@tracker_factories.register("csv_of_mine")
def make_csv(config, folder):
    return CsvTracker(folder / "mine.csv")
"""


@pytest.fixture
def run(tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (tmp_path / "my_tracker.py").write_text(MY_TRACKER)
    monkeypatch.syspath_prepend(str(tmp_path))
    return [*tiny_overrides(tmp_path, model_folder), "trainer.steps=2", "imports=[my_tracker]"]


@pytest.mark.whole
def test_a_tracker_of_the_users_own_gets_what_the_jsonl_file_gets(run: list[str], tmp_path: Path) -> None:
    commands.train(*run, "tracking.trackers=[csv_of_mine]", quiet=True, reward=score_variety)
    logged = read_metrics(tmp_path / "tiny" / "metrics.jsonl")
    *rows, last = csv.reader((tmp_path / "tiny" / "mine.csv").read_text().splitlines())
    assert rows == [[str(line["step"]), str(len(line) - 1)] for line in logged]
    assert last == ["closed", ""]


def test_an_unknown_tracker_is_refused_before_a_model_is_loaded(run: list[str]) -> None:
    with pytest.raises(ConfigError, match="csv_of_mine"):
        commands.train(*run, "tracking.trackers=[csv_of_min]", quiet=True, reward=score_variety)
