"""Published figures come from rows that training never reads: `agent-r1 eval RUN`, recorded and compared by task."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import agent_r1
from agent_r1.cli import app
from agent_r1.errors import ConfigError, UnknownNameError
from agent_r1.runs import RunFolder, read_evaluation, read_runs, table_rows
from agent_r1.training.evaluations import settings_of
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


def test_an_evaluation_of_all_rows_says_so_where_the_run_evaluated_fewer(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two rows during training, and all of the test split, which may take hours."""
    trained = Path(shutil.copytree(run, tmp_path / "tiny"))
    config = (trained / "config.yaml").read_text()
    (trained / "config.yaml").write_text(config.replace("max_tasks: null", "max_tasks: 2"))
    agent_r1.evaluate_run(trained, split="validation")  # from its records
    assert "eval.max_tasks" not in capsys.readouterr().out
    agent_r1.evaluate_run(trained, again=True)
    assert "evaluating all rows of test: the run's eval.max_tasks=2 is for" in capsys.readouterr().out
    assert len(read_evaluation(trained / "evaluations/test_after.json").tasks) == 5


@pytest.mark.whole
def test_an_evaluation_with_other_settings_has_records_and_a_row_of_its_own(run: Path, tmp_path: Path) -> None:
    own = agent_r1.evaluate_run(run, quiet=True)
    settings = ["rollout.max_steps=1", "eval.samples=2"]
    printed = invoke("eval", str(run), *settings, "--json", str(tmp_path / "found.json"))
    assert "evaluated with rollout.max_steps=1" in printed
    assert "all/best@2" in printed
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["settings"] == sorted(settings)
    assert found["after"]["metrics"]["eval/all/steps"] == 1.0  # the setting was used
    again = agent_r1.evaluate_run(run, overrides={"eval.samples": 2, "rollout.max_steps": 1}, quiet=True)
    assert again.gain == found["gain"]["gain"]
    assert len(list((run / "evaluations").glob("test_*_after.json"))) == 1  # in another order they are the same
    header, first, second = table_rows(read_runs([run]))
    column = header.index("evaluated with")
    assert (first[column], second[column]) == ("-", "eval.samples=2, rollout.max_steps=1")
    assert first[column + 7] == f"{own.before:.3f} -> {own.after:.3f}"


REFUSED = {
    "trainer.steps=3": "trainer.steps=3: a run is evaluated with its own settings, except for eval.samples",
    "rollout.temperature=0.5": "rollout.temperature=0.5: a run is",
    "eval.split=train": "Choose rows with --split",
    "eval={samples: 4}": "a run is evaluated with its own settings",
    "env.name=other": "env.name=other: a run is",
    "env=gym:FrozenLake-v1": "env=gym:FrozenLake-v1: a run is",
    "engine=openai": "engine=openai evaluates the model of its server, not those of the run",
    "rollout.max_steps=none": "rollout.max_steps",
}


def test_what_an_evaluation_of_a_run_cannot_take_is_refused_by_name(run: Path) -> None:
    config = RunFolder(run).read_config()
    for text, message in REFUSED.items():
        with pytest.raises(ConfigError, match=re.escape(message)):
            settings_of(config, "test", [text])
    result = CliRunner().invoke(app, ["eval", str(run), "trainer.steps=3", "--model", "x", "--show", "2"])
    assert result.exit_code == 2
    assert "leave --model and --show out, or evaluate its recipe" in " ".join(result.output.split())


def test_an_unknown_split_is_refused(run: Path) -> None:
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
