"""The agents of examples/existing_agents: none is changed for training, each plays and trains through the gateway."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent_r1 import load_trajectories
from agent_r1.chat import ChatRenderer
from agent_r1.cli import app
from agent_r1.config import AgentConfig
from agent_r1.engines import ScriptedEngine
from agent_r1.runs.tracking import read_metrics
from agent_r1.types import SamplingParams, StopReason, TokenIds
from benchmarks.speed import gateway as benchmark
from tests.helpers import commands
from tests.helpers.gateway_agents import CALL, encoded, roll_out
from tests.helpers.tiny_runs import score_variety, tiny_overrides

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "existing_agents"
PAGE = ROOT / "docs" / "tutorials" / "existing_agent.md"
AGENTS = {
    "openai_agent": AgentConfig(function=f"{FOLDER}/openai_agent.py:solve"),
    "pydantic_ai_agent": AgentConfig(function=f"{FOLDER}/pydantic_ai_agent.py:solve"),
    "curl_agent": AgentConfig(command=f"bash {FOLDER}/curl_agent.sh"),
}
pytestmark = pytest.mark.whole
MULTIPLY = '<tool_call>{"name": "calculate", "arguments": {"expression": "3*4"}}</tool_call>'


@pytest.fixture(scope="module", autouse=True)
def _connections_closed() -> Iterator[None]:
    """The agent on the openai client keeps its connections for as long as its process lives; tests outlive that."""
    yield
    for name in [name for name in sys.modules if name.startswith("agent_r1_agent_openai_agent")]:
        sys.modules.pop(name).HTTP.close()


def needs(name: str) -> None:
    """Skip the test on a machine without what the agent is made of."""
    for module in {"openai_agent": ["openai"], "pydantic_ai_agent": ["openai", "pydantic_ai"]}.get(name, []):
        if find_spec(module) is None:
            pytest.skip(f"{name} needs the package {module}: pip install 'agent-r1[dev]'")
    for program in ("curl", "jq") if name == "curl_agent" else ():
        if shutil.which(program) is None:
            pytest.skip(f"{name} needs the program {program}")


def shopping(tokenizer: Any, *replies: str) -> ScriptedEngine:
    """An engine whose reply depends on how many results the prompt has."""
    ids = encoded(tokenizer, *replies)
    [mark] = tokenizer.encode("<tool_response>", add_special_tokens=False)

    def reply(prompt: TokenIds, sampling: SamplingParams) -> list[int]:
        return ids[min(prompt.count(mark), len(ids) - 1)]

    return ScriptedEngine(reply)


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_shops_and_every_call_continues_the_one_before(
    renderer: ChatRenderer, tokenizer: Any, name: str
) -> None:
    needs(name)
    found = roll_out(shopping(tokenizer, CALL, MULTIPLY, "12"), renderer, AGENTS[name], group_size=2)
    for trajectory in found:
        assert (trajectory.stop_reason, trajectory.outcome_reward) == (StopReason.DONE, 1.0), trajectory.error
        assert [step.parent for step in trajectory.steps] == [-1, 0, 1]
        for before, after in zip(trajectory.steps, trajectory.steps[1:], strict=False):
            whole = before.prompt_ids + before.action_ids
            assert after.prompt_ids[: len(whole)] == whole


@pytest.mark.parametrize("name", AGENTS)
def test_a_model_that_calls_wrongly_is_no_failure_of_the_agent(
    renderer: ChatRenderer, tokenizer: Any, name: str
) -> None:
    needs(name)
    wrong = '<tool_call>{"name": "calculate", "arguments": {"expression": "a[$(date)]"}}</tool_call>'
    [trajectory] = roll_out(shopping(tokenizer, wrong, "11"), renderer, AGENTS[name])
    assert trajectory.stop_reason is StopReason.DONE, trajectory.error
    assert trajectory.outcome_reward == 0.0


def command_of(text: str) -> str:
    """The training command in an example's first comment, on one line."""
    [found] = re.findall(r"agent-r1 train .*\\+\n.*", text)
    return " ".join(re.sub(r"\\+\n#?", " ", found).split())


@pytest.mark.parametrize("file", ["openai_agent.py", "pydantic_ai_agent.py", "curl_agent.sh"])
def test_the_command_of_an_example_is_that_of_the_page_and_passes_a_dry_run(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(file.partition(".")[0])
    command = command_of((FOLDER / file).read_text())
    page = " ".join(PAGE.read_text().replace("\\\n", " ").split())
    assert command in page
    monkeypatch.chdir(ROOT)
    shown = CliRunner().invoke(app, [*shlex.split(command)[1:], f"run.folder={tmp_path}", "--dry-run"])
    assert shown.exit_code == 0, shown.output
    assert "train: 2048 tasks" in shown.output


def test_the_agent_on_the_openai_client_trains_unchanged(tmp_path: Path, model_folder: Path) -> None:
    needs("openai_agent")
    agent = [f"agent.function={FOLDER}/openai_agent.py:solve", "data.agent_name=gateway", "trainer.steps=2"]
    commands.train(*tiny_overrides(tmp_path, model_folder, *agent), quiet=True, reward=score_variety)
    lines = read_metrics(tmp_path / "tiny" / "metrics.jsonl")
    assert [line["step"] for line in lines if "reward/mean" in line or "loss/policy" in line][-1] == 2
    assert all(line["error/failed_rollouts"] == 0 for line in lines if "error/failed_rollouts" in line)
    trajectories = load_trajectories(tmp_path / "tiny")
    assert len(trajectories) == 16
    assert all(trajectory.steps[0].parent == -1 for trajectory in trajectories)


BRANCHING = """
import json, urllib.request

def ask(base_url, messages, **fields):
    body = json.dumps({"model": "m", "messages": messages, **fields}).encode()
    with urllib.request.urlopen(urllib.request.Request(base_url + "/chat/completions", body)) as response:
        return [choice["message"] for choice in json.loads(response.read())["choices"]]

def solve(task, base_url, api_key):
    for message in ask(base_url, task["prompt"], n=2):
        ask(base_url, [*task["prompt"], message, {"role": "user", "content": "Sure?"}])
    ask(base_url, [{"role": "user", "content": "Something else."}])
"""


@pytest.mark.parametrize("algorithm", ["grpo", "steppo", "ppo", "gigpo", "step_grpo", "reinforce_pp"])
def test_episodes_that_branch_are_trained_by_every_kind_of_estimator(
    tmp_path: Path, model_folder: Path, algorithm: str
) -> None:
    (tmp_path / "branching.py").write_text(BRANCHING)
    more = ["data.agent_name=gateway", "trainer.steps=1", "rollout.max_steps=8", f"algorithm={algorithm}"]
    overrides = tiny_overrides(tmp_path, model_folder, f"agent.function={tmp_path}/branching.py:solve", *more)
    commands.train(*overrides, quiet=True, reward=score_variety)
    trajectories = load_trajectories(tmp_path / "tiny")
    assert {tuple(step.parent for step in trajectory.steps) for trajectory in trajectories} <= {
        (-1, -1, 0, 1, -1),
        (-1, -1, 1, 0, -1),  # two equal completions
    }
    [line] = [line for line in read_metrics(tmp_path / "tiny" / "metrics.jsonl") if "episode/branches" in line]
    assert line["episode/branches"] == 3.0


@pytest.mark.slow
def test_the_agent_on_the_openai_client_learns_the_quickstarts_task(tmp_path: Path) -> None:
    """As its command says, with the quickstart's own settings: 0.9 or more on held-out tasks."""
    needs("openai_agent")
    summary = commands.train(
        str(ROOT / "recipes" / "quickstart"),
        f"run.folder={tmp_path}",
        "data.agent_name=gateway",
        f"agent.function={FOLDER}/openai_agent.py:solve",
        quiet=True,
    )
    assert summary.success_after >= 0.9


def test_the_benchmark_compares_with_the_flow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    say: Callable[[str], None] = print
    benchmark.main(["--episodes", "2", "--repeats", "1", "--json", str(tmp_path / "rows.json")], say)
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names[:2] == ["flow", "http"]
    assert (tmp_path / "rows.json").is_file()
