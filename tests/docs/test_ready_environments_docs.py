"""docs/ready_environments.md: its commands are planned, its Python trains, its tables name the keys that exist."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

import agent_r1
from agent_r1.cli.app import app
from agent_r1.envs import EXAMPLES, env_kinds
from tests.helpers.ports import free_port
from tests.unit.tools.test_mcp import http_server

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "ready_environments.md").read_text()
PYTHON, COINS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = re.findall(r"^    agent-r1 (train .*)$", TEXT, re.MULTILINE)
SMALL = [
    "trainer.steps=1",
    "rollout.groups_per_step=1",
    "rollout.group_size=2",
    "rollout.max_tokens=8",
    "eval.max_tasks=1",
]

MAZE = """
from tests.helpers.tiny_gym import Line as Maze, describe
"""
ENVIRONMENT = """
from tests.helpers.verifiers_envs import load_environment as load

def load_environment(difficulty="easy"):
    return load("tools")
"""


def in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that the page's commands name."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    shutil.copy(ROOT / "tests" / "helpers" / "mcp_server.py", "server.py")
    files = {"my_envs.py": MAZE, "my_environment.py": ENVIRONMENT, "coins.py": COINS}
    files["reward_fn.py"] = "from tests.helpers.tiny_runs import score_variety as score\n"
    files["tasks.jsonl"] = json.dumps({"question": "1 + 1?", "answer": 2}) + "\n"
    for name, text in files.items():
        Path(name).write_text(text)


def planned(command: str, model: Path) -> str:
    """What `--dry-run` prints for a command of the page, with a model that is on this disk."""
    arguments = [f"model.path={model}" if entry == "model=smollm2" else entry for entry in shlex.split(command)]
    arguments = ["env.tasks=20" if entry == "env.tasks=5000" else entry for entry in arguments]  # the same, sooner
    result = CliRunner().invoke(app, [*arguments, "--dry-run"])
    assert result.exit_code == 0, f"{command}\n{result.output}"
    return result.output


@pytest.fixture(autouse=True)
def no_kind_of_the_page() -> Iterator[None]:
    """The page registers a kind of its own, each test from a folder of its own."""
    yield
    env_kinds._entries.pop("coin", None)


@pytest.mark.whole
@pytest.mark.parametrize("command", [command for command in COMMANDS if "env=verifiers" not in command])
def test_every_command_of_the_page_can_be_run(
    command: str, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_folder(tmp_path, monkeypatch)
    if "localhost:8000" not in command:
        assert "train: " in planned(command, model_folder)
        return
    port = free_port()
    with http_server(port):
        assert "train: 1 tasks" in planned(command.replace("localhost:8000", f"127.0.0.1:{port}"), model_folder)


@pytest.mark.whole
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(find_spec("verifiers") is None, reason="the extra `verifiers` is not installed")
def test_the_commands_for_verifiers_can_be_run(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_folder(tmp_path, monkeypatch)
    for command in COMMANDS:
        if "env=verifiers" in command:
            assert "train: 8 tasks   eval: 2 tasks" in planned(command, model_folder)


@pytest.mark.whole
def test_the_python_of_the_page_trains(tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_folder(tmp_path, monkeypatch)
    given = json.dumps(dict(entry.split("=") for entry in SMALL))
    program = PYTHON.replace("HuggingFaceTB/SmolLM2-135M-Instruct", str(model_folder))
    program = program.replace('{"trainer.steps": 20}', given)
    assert given in program
    exec(compile(program, "page", "exec"), {})
    assert len(agent_r1.load_trajectories("runs/FrozenLake-v1")) == 2


@pytest.mark.whole
def test_the_kind_of_the_page_trains(tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_folder(tmp_path, monkeypatch)
    [command] = [command for command in COMMANDS if "env=coin:" in command]
    arguments = shlex.split(command.replace("model=smollm2", f"model.path={model_folder}"))
    result = CliRunner().invoke(app, [*arguments, *SMALL])
    assert result.exit_code == 0, result.output
    assert len(agent_r1.load_trajectories("runs/heads")) == 2


def test_every_key_and_kind_is_on_the_page() -> None:
    ours = [name for name in env_kinds.names() if name in EXAMPLES]
    assert sorted(EXAMPLES) == ours
    for name in ours:
        assert f"| `{name}` |" in TEXT
        keys = [p.name for p in inspect.signature(env_kinds.get(name)).parameters.values() if p.kind is p.KEYWORD_ONLY]
        assert [key for key in keys if f"`env.{key}`" not in TEXT] == []
