"""docs/serving.md: its requests are sent to a real server, its Python is run, its tables name what exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_r1.openai_api.fields import HARMLESS, NEUTRAL, ChatFields
from tests.helpers.served_model import RECIPE, Served, served
from tests.helpers.tiny_runs import write_tasks

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "serving.md").read_text()

pytest.importorskip("uvicorn", reason="the server needs the extra 'serve'")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture(scope="module")
def running(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    from agent_r1.inference import load_agent

    tasks = write_tasks(tmp_path_factory.mktemp("data") / "tasks.jsonl")
    agent = load_agent(model_folder, recipe=RECIPE, overrides=["rollout.concurrency=8", f"data.eval=[{tasks}]"])
    with served(agent, name="quickstart") as server:
        yield server


def as_here(text: str, running: Served) -> str:
    return text.replace("http://127.0.0.1:8000", running.url)


@pytest.mark.whole
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("number", range(len(blocks("sh"))))
def test_a_request_of_the_page_is_answered(running: Served, number: int) -> None:
    command = as_here(blocks("sh")[number], running)
    answer = subprocess.run(["sh", "-c", f"{command.strip()} -s"], capture_output=True, text=True, check=True).stdout
    assert '"error": {' not in answer
    if '"agent.trajectory"' in answer:
        assert json.loads(answer)["reward"] is not None
    elif answer.startswith("{"):
        assert [choice["index"] for choice in json.loads(answer)["choices"]] == [0, 1]
    else:
        assert answer.endswith("data: [DONE]\n\n")


@pytest.mark.whole
def test_the_python_of_the_page_runs_with_the_tools_that_the_quickstart_learned(running: Served) -> None:
    from recipes.quickstart.shop import shop_tools

    pytest.importorskip("openai", reason="the client is in the extra 'dev'")

    def shown(schema: Mapping[str, Any]) -> tuple[str, str, list[str]]:
        """What its chat template writes of a tool."""
        function = schema["function"]
        return function["name"], function["description"], list(function["parameters"]["properties"])

    learned = [shown(tool.tool_schema) for tool in shop_tools()]
    for block in blocks("python"):
        names: dict[str, Any] = {}
        exec(compile(as_here(block, running), "docs/serving.md", "exec"), names)
        assert [shown(schema) for schema in names["tools"]] == learned


def test_the_page_names_every_field_of_chat_and_every_option() -> None:
    chat = PAGE.partition("### Chat")[2].partition("### Token ids")[0]
    missing = [name for name in ChatFields.model_fields if f"`{name}" not in chat and name != "model"]
    assert not missing
    assert all(name in HARMLESS for name in ("user", "metadata", "store", "service_tier"))
    assert all(name in NEUTRAL for name in ("response_format", "logit_bias", "audio", "reasoning_effort"))
    source = (ROOT / "agent_r1" / "cli" / "serving.py").read_text()
    body = source.partition("def serve(")[2].partition(") -> None")[0]
    options = [f"--{name.replace('_', '-')}" for name in re.findall(r"^    (\w+):", body, flags=re.MULTILINE)]
    undocumented = [
        option
        for option in options
        if option not in PAGE and option not in ("--model-or-run", "--overrides", "--port", "--key")
    ]
    assert not undocumented


def test_the_events_of_the_page_are_those_of_the_agent_mode() -> None:
    table = PAGE.partition("| event | data |")[2].partition("\n\n")[0]
    documented = {
        row[0]: set(re.findall(r"`(\w+)`", row[1].partition(":")[0]))
        for row in re.findall(r"^\| `(\w+)` \| (.*) \|", table, flags=re.MULTILINE)
    }
    source = (ROOT / "agent_r1" / "serving" / "agent_mode.py").read_text()
    described = {
        kind: set(fields.split(", "))
        for kind, fields in re.findall(r"^    (\w+) +\{([^}]*)\}", source, flags=re.MULTILINE)
    }
    assert documented == described
