"""What needs no model needs no torch: each command in a process in which torch and transformers cannot be imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.tiny_runs import tiny_overrides

ROOT = Path(__file__).parents[3]
PROGRAM = """
import importlib.abc, json, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers"}:
            raise AssertionError(f"{name} was imported")

sys.meta_path.insert(0, Blocked())

from typer.testing import CliRunner
from agent_r1.cli import app

for command in json.loads(sys.argv[1]):
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    print(json.dumps([result.exit_code, result.output]))
"""


def run_all(folder: Path, *commands: list[str]) -> list[str]:
    """What each command prints; all run in one process, since starting one takes longest."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [code for code, _ in results] == [0] * len(commands), results
    return [output for _, output in results]


@pytest.mark.whole
def test_help_recipes_plot_table_and_view_import_no_torch(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = tmp_path / "runs" / "a"
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text('{"step": 1, "reward/outcome": 0.5, "time/total": 1.0}\n')
    (run / "config.yaml").write_text("model: {path: m}\n")
    commands = [["--help"], ["train", "--help"], ["recipes"], ["recipes", "copy", "quickstart"], ["table", "runs/a"]]
    page = ["view", "runs", "--export", "page.html"]
    outputs = run_all(tmp_path, *commands, ["plot", "runs/a", "--out", "curves.svg"], page)
    assert "quickstart" in outputs[2]
    assert (tmp_path / "quickstart" / "base.yaml").is_file()
    assert (tmp_path / "curves.svg").is_file()
    assert (tmp_path / "page.html").is_file()


@pytest.mark.whole
def test_a_dry_run_imports_no_torch_with_a_model_and_before_there_is_one(tmp_path: Path, model_folder: Path) -> None:
    _, *tiny = tiny_overrides(tmp_path, model_folder)
    before = ["train", "quickstart", "algorithm=ppo", "--dry-run"]
    with_model, without_model = run_all(tmp_path, ["train", "quickstart", *tiny, "--dry-run"], before)
    assert "model: found; every first prompt fits its context" in with_model
    assert "model: will be made by prepare:make_warm_start" in without_model
