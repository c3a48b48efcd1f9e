"""Published figures come from rows that training never reads: `agent-r1 eval RUN`, recorded and compared by task."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import agent_r1
from agent_r1.cli import app
from agent_r1.errors import ConfigError, UnknownNameError
from agent_r1.runs import read_evaluation, read_runs, table_rows
from tests.helpers import commands
from tests.helpers.tiny_runs import tiny_overrides, write_tasks


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    """A run with validation and test rows."""
    folder = tmp_path_factory.mktemp("splits")
    held_out = {name: write_tasks(folder / f"{name}.jsonl", count=count) for name, count in (("eval", 3), ("test", 5))}
    files = [f"data.{name}=[{path}]" for name, path in held_out.items()]
    commands.train(*tiny_overrides(folder, model_folder, "trainer.steps=1", *files), quiet=True)
    return folder / "tiny"


def invoke(*arguments: str) -> str:
    result = CliRunner(env={"COLUMNS": "250"}).invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def test_a_run_records_its_validation_tasks_and_not_one_test_task(run: Path) -> None:
    files = {file.name for file in (run / "evaluations").iterdir()} - {"test_before.json", "test_after.json"}
    assert files == {"validation_before.json", "validation_after.json"}
    before, after = (read_evaluation(run / "evaluations" / f"validation_{stage}.json") for stage in ("before", "after"))
    assert (before.split, before.step, after.step) == ("validation", 0, 1)
    assert len(before.tasks) == len(after.solved) == 3
    assert after.metrics["eval/all/rows"] == 3


@pytest.mark.whole
def test_a_finished_run_is_evaluated_on_its_test_rows_before_and_after(run: Path) -> None:
    printed = invoke("eval", str(run))
    assert "test, 5 tasks: " in printed
    assert ", p " in printed
    before, after = (read_evaluation(run / "evaluations" / f"test_{stage}.json") for stage in ("before", "after"))
    assert (before.split, after.split, len(after.tasks)) == ("test", "test", 5)
    assert (before.step, after.step) == (0, 1)
    assert after.model == str(run / "hf")
    again = invoke("eval", str(run))
    assert "recorded in" in again
    assert printed.strip().splitlines()[-1] == again.strip().splitlines()[-1]
    gain = agent_r1.evaluate_run(run, quiet=True)
    assert gain.after - gain.before == gain.gain
    header, row = table_rows(read_runs([run]))
    [column] = [number for number, title in enumerate(header) if "test, before -> after" in title]
    assert "(5 rows)" in header[column]
    assert row[column] == f"{gain.before:.3f} -> {gain.after:.3f}"
    assert row[column + 1].startswith(f"{gain.gain:+.3f} (")
    assert "validation, before" in " ".join(table_rows(read_runs([run]), split="validation")[0])


def test_other_models_and_settings_are_refused_for_a_run(run: Path) -> None:
    result = CliRunner().invoke(app, ["eval", str(run), "eval.samples=4", "--model", "x"])
    assert result.exit_code == 2
    assert "leave the overrides and the model out" in " ".join(result.output.split())
    with pytest.raises(UnknownNameError, match=r"unknown split 'tset'\. Did you mean 'test'"):
        agent_r1.evaluate_run(run, split="tset")


def test_training_on_test_rows_and_missing_test_rows_are_refused(tmp_path: Path, model_folder: Path) -> None:
    with pytest.raises(ConfigError, match="training is evaluated on validation rows alone"):
        commands.train(*tiny_overrides(tmp_path, model_folder, "eval.split=test"), quiet=True)
    with pytest.raises(ConfigError, match=r"data\.test is empty"):
        commands.evaluate(*tiny_overrides(tmp_path, model_folder, "eval.split=test", "data.test=[]"), quiet=True)


def test_a_broken_record_is_named(run: Path, tmp_path: Path) -> None:
    broken = tmp_path / "x_after.json"
    broken.write_text(json.dumps({"split": "test"}))
    with pytest.raises(agent_r1.AgentR1Error, match="is not the record of an evaluation"):
        read_evaluation(broken)
