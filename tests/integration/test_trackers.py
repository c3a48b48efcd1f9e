"""W&B and MLflow, offline and for real: what a run logs is read back from their own files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from agent_r1.runs import RunFolder
from tests.helpers.forks import run_python
from tests.helpers.optional import needs
from tests.helpers.tiny_runs import tiny_overrides
from tests.helpers.wandb_files import read_exit_code, read_offline_run

needs("wandb", reason="needs agent-r1[wandb]")
needs("mlflow", reason="needs agent-r1[mlflow]")
needs("sqlalchemy", reason="needs agent-r1[mlflow]")
pytestmark = pytest.mark.whole
ROOT = Path(__file__).parents[2]


def python(folder: Path, *arguments: str, **environment: str) -> str:
    """What Python printed."""
    own = {"HOME": str(folder), "OMP_NUM_THREADS": "1", **environment}
    result = run_python(*arguments, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), **own})
    assert result.returncode == 0, result.stdout + result.stderr
    return " ".join((result.stdout + result.stderr).split())


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> RunFolder:
    """A run of two steps that both trackers logged offline, resumed for a third."""
    folder = tmp_path_factory.mktemp("tracked")
    overrides = tiny_overrides(
        folder,
        model_folder,
        "tracking.trackers=[wandb,mlflow]",
        "tracking.project=shop",
        "tracking.tags=[ablation]",
    )
    for steps in (2, 3):
        command = ("-m", "agent_r1.cli", "train", *overrides, f"trainer.steps={steps}")
        python(folder, *command, WANDB_MODE="offline", MLFLOW_TRACKING_URI=f"sqlite:///{folder}/mlflow.db")
    return RunFolder(folder / "tiny")


def metrics_by_step(run: RunFolder) -> dict[int, dict[str, float]]:
    """The metrics of each step; none was lost and none of a tracker's own was added."""
    merged: dict[int, dict[str, float]] = {}
    for line in run.read_metrics():
        step = line.pop("step")
        merged.setdefault(step, {}).update(line)
    assert merged.keys() == {1, 2, 3}
    assert not [name for line in merged.values() for name in line if name == "error/failed_trackers"]
    return merged


def test_wandb_offline_has_the_run_its_config_tags_and_metrics(tracked: RunFolder) -> None:
    record, config, history = read_offline_run(tracked.path / "wandb")
    assert (record.project, record.display_name) == ("shop", "tiny")
    assert record.run_id == json.loads((tracked.path / "trackers.json").read_text())["wandb"]
    assert {"ablation", "quickstart"} <= set(record.tags)
    assert (config["trainer"]["steps"], config["rollout"]["group_size"]) == (3, 4)
    expected = metrics_by_step(tracked)
    assert history.keys() == expected.keys()
    for step, metrics in expected.items():
        assert {name: history[step][name] for name in metrics} == pytest.approx(metrics, rel=1e-5)
    assert len(list((tracked.path / "wandb").glob("offline-run-*"))) == 2


@pytest.mark.filterwarnings("ignore")
def test_mlflow_on_sqlite_has_the_run_its_params_tags_and_metrics(tracked: RunFolder) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tracked.path.parent}/mlflow.db")
    experiment = client.get_experiment_by_name("shop")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    assert run.info.run_id == json.loads((tracked.path / "trackers.json").read_text())["mlflow"]
    assert (run.info.status, run.info.run_name) == ("FINISHED", "tiny")
    assert (run.data.tags["recipe"], run.data.tags["ablation"]) == ("quickstart", "true")
    assert (run.data.params["rollout.group_size"], run.data.params["run.name"]) == ("4", "tiny")
    expected = metrics_by_step(tracked)
    for name in expected[3]:
        history = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, name)}
        assert history == pytest.approx({step: line[name] for step, line in expected.items()}, rel=1e-5)
    assert not (tracked.path.parent / "mlruns").exists()


OPEN_TRACKERS = """
from pathlib import Path
from agent_r1.config import load_config
from agent_r1.runs import RunFolder, open_trackers

section = ["tracking.trackers=[wandb,mlflow]", "tracking.project=shop"]
trackers = open_trackers(load_config(None, ["model.path=none", *section]), RunFolder(Path("tiny")), print)
trackers.log(1, {"reward": 1.0})
trackers.close()
print(RunFolder(Path("tiny")).read_metrics())
"""


def test_services_that_cannot_be_reached_cost_a_warning_each(tmp_path: Path) -> None:
    """W&B without a key and an MLflow server that is gone: nothing listens at port 9."""
    printed = python(
        tmp_path,
        "-c",
        OPEN_TRACKERS,
        WANDB_MODE="online",
        WANDB_API_KEY="",
        WANDB_BASE_URL="http://127.0.0.1:9",
        MLFLOW_TRACKING_URI="http://127.0.0.1:9",
        MLFLOW_HTTP_REQUEST_MAX_RETRIES="0",
    )
    assert "tracker 'wandb' cannot be opened" in printed
    assert "tracker 'mlflow' cannot be opened" in printed
    assert printed.count("The run continues without it; metrics.jsonl has every metric") == 2
    assert "[{'step': 1, 'reward': 1.0}]" in printed


BROKEN_RUN = """
import sqlite3
from pathlib import Path
from agent_r1.config import load_config
from agent_r1.runs import RunFolder, open_trackers

section = ["tracking.trackers=[wandb,mlflow]", "tracking.project=shop"]
try:
    with open_trackers(load_config(None, ["model.path=none", *section]), RunFolder(Path("tiny")), print) as trackers:
        trackers.log(1, {"reward": 1.0})
        raise RuntimeError("the engine is gone")
except RuntimeError:
    print(sqlite3.connect("mlflow.db").execute("select status from runs").fetchall())
"""


def test_a_run_that_an_error_ends_is_shown_as_failed(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    printed = python(tmp_path, "-c", BROKEN_RUN, WANDB_MODE="offline", MLFLOW_TRACKING_URI="sqlite:///mlflow.db")
    assert "[('FAILED',)]" in printed
    assert read_exit_code(tmp_path / "tiny" / "wandb") == 1
