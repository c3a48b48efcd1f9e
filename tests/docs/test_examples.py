"""The scripts in `examples`: three lines each, and what they start passes every check before a model is loaded."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_r1.cli import app
from tests.helpers.recipe_runs import ROOT, SampleRun, sample_run

SCRIPTS = sorted((ROOT / "examples").glob("*/run_*.sh"))
ALGORITHMS = ["grpo", "ppo", "reinforce_pp", "rloo", "steppo"]
GSM8K = ("gsm8k", "gsm8k_tool")


@pytest.fixture(scope="module", params=GSM8K)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SampleRun:
    return sample_run(ROOT / "recipes" / request.param, tmp_path_factory.mktemp("run"))


def started_with(script: Path, folder: Path, *given: str) -> list[str]:
    """The arguments `agent-r1` is started with."""
    stand_in = folder / "agent-r1"
    stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stand_in.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    done = subprocess.run([script, *given], env={"PATH": path}, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("task", [*GSM8K, "hotpotqa"])
def test_there_is_a_script_for_each_algorithm(task: str) -> None:
    assert [script.stem for script in SCRIPTS if script.parent.name == task] == [f"run_{name}" for name in ALGORITHMS]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: f"{script.parent.name}/{script.name}")
def test_a_script_is_three_lines_that_start_what_its_name_says(script: Path, tmp_path: Path) -> None:
    lines = script.read_text().splitlines()
    assert lines[:2] == ["#!/usr/bin/env bash", "set -euo pipefail"]
    assert len(lines) == 3
    verb, recipe, *rest = started_with(script, tmp_path, "trainer.steps=3", "run.folder=a b")
    name = script.stem.removeprefix("run_")
    assert verb == "train"
    assert Path(recipe).resolve() == ROOT / "recipes" / script.parent.name
    assert rest == [f"algorithm={name}", f"run.name={script.parent.name}_{name}", "trainer.steps=3", "run.folder=a b"]


def test_what_the_scripts_start_passes_a_dry_run(run: SampleRun, tmp_path: Path) -> None:
    for script in (script for script in SCRIPTS if script.parent.name == run.recipe.name):
        arguments = started_with(script, tmp_path, *run.overrides, "--dry-run")
        shown = CliRunner().invoke(app, arguments)
        assert shown.exit_code == 0, shown.output
        assert re.search(r"train: 48 tasks\s+eval: 16 tasks\s+model: found; every first prompt fits", shown.output)
        assert f"name: {script.parent.name}_{script.stem.removeprefix('run_')}" in shown.output
