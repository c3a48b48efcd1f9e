"""`tracking.profile_step`: the profile of one step, and runs that cannot write it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from agent_r1.errors import ConfigError, StorageError
from agent_r1.runs.tracking import JsonlTracker, read_metrics
from agent_r1.training.reporting import profile
from agent_r1.training.reporting.profile import Operation, StepProfile, tables_of
from tests.helpers import commands
from tests.helpers.tiny_runs import score_variety, tiny_overrides


def test_one_step_is_profiled_and_the_others_are_as_without(tmp_path: Path, model_folder: Path) -> None:
    overrides = [*tiny_overrides(tmp_path, model_folder), "trainer.steps=3"]
    commands.train(*overrides, "run.name=profiled", "tracking.profile_step=2", quiet=True, reward=score_variety)
    commands.train(*overrides, "run.name=plain", quiet=True, reward=score_variety)
    folder = tmp_path / "profiled" / "profile"
    assert sorted(file.name for file in folder.iterdir()) == ["step_2.json.gz", "step_2.txt"]
    tables = (folder / "step_2.txt").read_text()
    assert "aten::mm" in tables
    assert "update: Python, and waiting" in tables
    with gzip.open(folder / "step_2.json.gz") as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert {"rollout", "update", "weight update"} <= names
    assert "MmBackward0" in names  # of the update, which has a thread of its own
    learned = [
        [{name: value for name, value in line.items() if not name.startswith(("time/", "perf/"))} for line in lines]
        for lines in (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("profiled", "plain"))
    ]
    assert learned[0] == learned[1]
    assert not (tmp_path / "plain" / "profile").exists()


def test_a_profile_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(profile, "write_atomically", refuse)
    overrides = tiny_overrides(tmp_path, model_folder, "trainer.steps=1", "tracking.profile_step=1")
    summary = commands.train(*overrides, quiet=True)
    assert summary.steps == 1
    [warning] = [text for text in summary.warnings if "profile" in text]
    assert "the profile of step 1 could not be written" in warning
    assert warning.endswith("The run continues without it")


def test_a_torch_that_cannot_record_all_threads_records_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def older() -> None:
        """Takes no arguments, as in versions without the setting."""

    monkeypatch.setattr(profile, "_ExperimentalConfig", older)
    with StepProfile() as recorded:
        torch.ones(3).sum()
    recorded.write(tmp_path, 1)
    assert "aten::sum" in (tmp_path / "step_1.txt").read_text()


def test_a_step_after_the_last_one_is_refused(tmp_path: Path, model_folder: Path) -> None:
    overrides = tiny_overrides(tmp_path, model_folder, "trainer.steps=2", "tracking.profile_step=3")
    with pytest.raises(ConfigError, match=r"tracking\.profile_step=3: the last step is trainer\.steps=2"):
        commands.train(*overrides, quiet=True)


def test_a_file_that_the_run_needs_ends_it_in_the_step_that_is_profiled_too(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(tracker: JsonlTracker, step: int, metrics: Mapping[str, float]) -> None:
        raise StorageError("metrics.jsonl cannot be written (No space left on device)")

    monkeypatch.setattr(JsonlTracker, "log", full)
    overrides = tiny_overrides(tmp_path, model_folder, "trainer.steps=2", "tracking.profile_step=1")
    with pytest.raises(StorageError, match=r"metrics\.jsonl cannot be written .*checkpoint is that of step 1"):
        commands.train(*overrides, quiet=True)
    assert not (tmp_path / "tiny" / "profile").exists()


def test_a_place_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with StepProfile() as profile:
        pass
    with pytest.raises(StorageError, match="profile of step 7 could not be written"):
        profile.write(tmp_path / "file", 7)


def test_tables_say_what_took_longest_where() -> None:
    operations = [
        Operation(name="kernel " + "x" * 200, count=2, cpu=0.0, gpu=3.0),
        Operation(name="copy", count=4, cpu=0.5, gpu=1.0),
        Operation(name="python", count=1, cpu=1.5, gpu=0.0),
    ]
    gpu, processor = tables_of(operations).split("On the processor")
    assert "On the GPU, 4.000 s in all" in gpu
    assert [line.split()[:4] for line in gpu.splitlines()[4:6]] == [
        ["3.0000", "75.0", "%", "2"],
        ["1.0000", "25.0", "%", "4"],
    ]
    assert max(map(len, gpu.splitlines())) < 130
    assert [line.split()[4] for line in processor.splitlines()[3:5]] == ["python", "copy"]
    assert "On the GPU" not in tables_of(operations[2:])
