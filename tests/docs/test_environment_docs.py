"""What docs/environments.md says, held against the code: its examples run, alone, served and in training."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_r1.config import load_config
from agent_r1.envs import context_policies, env_wrappers, make_env
from agent_r1.registry import Registry, recipe_folder
from agent_r1.types import Task
from tests.helpers.forks import run_python
from tests.helpers.tiny_runs import RECIPE, tiny_overrides

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "environments.md").read_text()
ENVIRONMENT, CHECK, CLIENT = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [shlex.split(line) for line in re.findall(r"^    agent-r1 (.*)$", TEXT, re.MULTILINE)]


def run(folder: Path, *command: str) -> str:
    (folder / "guess.py").write_text(ENVIRONMENT)
    result = run_python(*command, cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


@pytest.mark.whole
def test_the_example_has_nothing_to_find(tmp_path: Path) -> None:
    (tmp_path / "check.py").write_text(CHECK)
    assert run(tmp_path, "check.py") == "0 findings\n"


@pytest.mark.whole
def test_the_example_is_served_played_and_trained_in(tmp_path: Path, model_folder: Path) -> None:
    (tmp_path / "guess.py").write_text(ENVIRONMENT)
    (tmp_path / "client.py").write_text(CLIENT)
    [serve] = [command for command in COMMANDS if command[:2] == ["env", "serve"]]
    serve[serve.index("--port") + 1] = "0"
    process = subprocess.Popen(
        [sys.executable, "-m", "agent_r1.cli", *serve],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().split()[-1]
        assert run(tmp_path, "client.py", url) == "higher\nlower\nreward 1.0\n"
        rows = tmp_path / "numbers.jsonl"
        prompt = [{"role": "user", "content": "Guess my number."}]
        rows.write_text("".join(json.dumps({"prompt": prompt, "env_kwargs": {"number": n}}) + "\n" for n in range(4)))
        [train] = [command for command in COMMANDS if "env=remote" in command]
        there = [part if not part.startswith("env.url") else f"env.url={url}" for part in train[2:]]
        recipe, *tiny = tiny_overrides(tmp_path, model_folder)
        last = [f"data.train=[{rows}]", "trainer.steps=1", "reward.function=none", "imports=[]"]
        run(tmp_path, "-m", "agent_r1.cli", "train", recipe, *tiny, *there, *last)
    finally:
        process.kill()
        process.communicate()
    metrics = json.loads((tmp_path / "tiny" / "metrics.jsonl").read_text().splitlines()[-1])
    assert metrics["step"] == 1


def test_the_commands_make_the_environments_they_say(tmp_path: Path) -> None:
    (tmp_path / "guess.py").write_text(ENVIRONMENT)
    task = Task(task_id="t", prompt=(), env_kwargs={"tools": ["calculate"]})
    made = []
    for command in COMMANDS:
        if command[0] == "train":
            config = load_config(RECIPE, command[2:])
            with recipe_folder(tmp_path):
                made.append(type(make_env(task, config.env)).__name__)
    assert made == ["Guess", "ToolEnv", "ObservationLimit", "RemoteEnv"]


def test_every_policy_and_limit_is_named() -> None:
    registries: list[Registry[Any]] = [context_policies, env_wrappers]
    entries = [(name, registry.get(name)) for registry in registries for name in registry.names()]
    ours = [name for name, entry in entries if entry.__module__.startswith("agent_r1.")]
    assert {"append", "window"} < set(ours)
    assert not [name for name in ours if f"| `{name}` |" not in TEXT]


def test_every_file_it_links_to_exists() -> None:
    links = re.findall(r"\]\(([^)]+\.(?:py|md))\)", TEXT)
    assert links
    assert not [link for link in links if not (ROOT / "docs" / link).is_file()]
