"""The files around the code agree with each other: changelog, hooks, workflow, Makefile."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

from agent_r1 import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())


def test_the_changelog_has_this_version_and_a_place_for_the_next() -> None:
    headings = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[:2] == ["Unreleased", __version__]


def test_hooks_use_the_ruff_that_everything_is_tested_with() -> None:
    [tested] = re.findall(r"^ruff==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    pinned = [dependency for hook in hooks for dependency in hook.get("additional_dependencies", ())]
    assert pinned == [f"ruff=={tested}"] * 2


def test_the_workflow_runs_commands_of_the_makefile_on_every_supported_python() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = [step["run"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step]
    assert commands
    assert all(command.startswith("make ") and command.removeprefix("make ") in targets for command in commands)
    pythons = WORKFLOW["jobs"]["unit"]["strategy"]["matrix"]["python-version"]
    assert pythons == ["3.11", "3.12", "3.13"]
    assert PROJECT["project"]["requires-python"] == f">={pythons[0]}"


def test_the_table_of_places_names_folders_and_files_that_exist() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where does it go?")[2].partition("\n## ")[0]
    named = [name.partition("<")[0] for name in re.findall(r"`((?:agent_r1|tests|benchmarks|recipes)/[^`]*)`", table)]
    assert len(named) > 15
    assert not [name for name in named if not (ROOT / name).exists()]
