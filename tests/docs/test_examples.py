"""The programs in `examples` run, and the loops over algorithms in the recipes' READMEs pass every check."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_r1.cli import app
from tests.helpers.forks import run_python
from tests.helpers.recipe_runs import ROOT, SampleRun, sample_run

EXAMPLES = ROOT / "examples"
RECIPES = sorted(
    file.parent.name for file in (ROOT / "recipes").glob("*/base.yaml") if "\n  train: [" in file.read_text()
)
"""Those that train; bfcl only evaluates."""
LOOP = re.compile(r"    for algorithm in (?P<names>[\w ]+); do\n        agent-r1 (?P<command>[^\n]+)\n    done\n")


def loop_in(recipe: str) -> list[list[str]]:
    """The arguments of each command of the loop in a recipe's README."""
    match = LOOP.search((ROOT / "recipes" / recipe / "README.md").read_text())
    assert match is not None
    return [match["command"].replace("$algorithm", name).split() for name in match["names"].split()]


def run_example(name: str, folder: Path, *arguments: str) -> str:
    done = run_python(str(EXAMPLES / name), *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_four_examples() -> None:
    names = ["minimal_grpo.py", "own_env.py", "own_flow.py", "own_tool.py"]
    assert sorted(path.name for path in EXAMPLES.glob("*.*")) == names


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("own_tool.py", ["text='3'", "there is no rum; known: tea, milk", "item: Field required", "findings: []"]),
        ("own_env.py", ["findings: []"]),
        ("own_flow.py", ["What is 2 + 2? -> 5", "answer: 4"]),
    ],
)
def test_a_short_example_runs_offline_and_shows_what_it_says(name: str, shown: list[str], tmp_path: Path) -> None:
    output = run_example(name, tmp_path)
    assert [text for text in shown if text not in output] == []


def test_minimal_grpo_fits_on_a_few_screens() -> None:
    assert len((EXAMPLES / "minimal_grpo.py").read_text().splitlines()) <= 120


@pytest.mark.whole
def test_minimal_grpo_runs(tmp_path: Path) -> None:
    """By the command of its docstring, in a clone's folder and without PYTHONPATH; its warm start is shortened."""
    for folder in ("agent_r1", "examples", "recipes"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    recipe = tmp_path / "recipes" / "quickstart" / "base.yaml"
    recipe.write_text(re.sub(r"(?<=^sft:\n  steps: )\d+$", "20", recipe.read_text(), flags=re.MULTILINE))
    assert "  steps: 20\n" in recipe.read_text()
    [module] = re.findall(r"^    python -m (\S+) ", (EXAMPLES / "minimal_grpo.py").read_text(), re.MULTILINE)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-m", module, "2", "4"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.search(r"step  2/2  reward 0\.\d{3}  rows [1-9]\d*", done.stdout), done.stdout + done.stderr


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_loop_of_a_recipe_gives_each_algorithm_a_run_of_its_own(recipe: str) -> None:
    commands = loop_in(recipe)
    names = [command[2].removeprefix("algorithm=") for command in commands]
    assert {"grpo", "ppo", "reinforce_pp", "rloo", "steppo"} <= set(names)
    assert len(names) == len(set(names))
    for command, name in zip(commands, names, strict=True):
        assert command == ["train", f"recipes/{recipe}", f"algorithm={name}", f"run.name={recipe}_{name}"]


@pytest.fixture(scope="module", params=["gsm8k", "gsm8k_tool"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SampleRun:
    return sample_run(ROOT / "recipes" / request.param, tmp_path_factory.mktemp("run"))


@pytest.mark.whole
def test_what_the_loop_starts_passes_a_dry_run(run: SampleRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for arguments in loop_in(run.recipe.name):
        shown = CliRunner().invoke(app, [*arguments, *run.overrides, "--dry-run"])
        assert shown.exit_code == 0, shown.output
        assert re.search(r"train: 39 tasks\s+eval: 9 tasks\s+model: found; every first prompt fits", shown.output)
        assert f"name: {arguments[-1].removeprefix('run.name=')}" in shown.output
