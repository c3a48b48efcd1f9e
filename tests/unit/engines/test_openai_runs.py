"""Runs whose model is behind a chat API: evaluated and checked without a local model, never trained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agent_r1
from agent_r1.errors import ConfigError, EngineError, RolloutsFailingError
from recipes.quickstart.shop import Basket, task_row
from tests.helpers.chat_server import ChatServer, answer, chat_server

pytest.importorskip("httpx")

USAGE = {"prompt_tokens": 10, "completion_tokens": 3}


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with chat_server() as running:
        running.reply = shopper
        yield running


def shopper(body: dict[str, Any]) -> dict[str, Any]:
    """Looks the price up, and then says what 2 cost, which is right once."""
    last = body["messages"][-1]
    if last["role"] == "user":
        return answer("", [("price", json.dumps({"item": "egg"}))], usage=USAGE)
    return answer(str(2 * int(last["content"])), usage=USAGE)


@pytest.fixture
def arguments(server: ChatServer, tmp_path: Path) -> dict[str, Any]:
    """A configuration without a model."""
    rows = [task_row(Basket(quantities={"egg": 2 + number}, prices={"egg": 3, "tea": 4})) for number in range(4)]
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    overrides = [
        "engine=openai",
        f"engine.servers.urls=[{server.url}]",
        "engine.servers.retries=1",
        f"run.folder={tmp_path}",
        f"data.train=[{file}]",
        "imports=[recipes.quickstart.tools]",
        "env.tools=[price,calculate]",
        "reward.function=recipes.quickstart.reward_fn:score",
        "rollout.max_tokens=50",
    ]
    return {"overrides": overrides, "quiet": True}


@pytest.mark.whole
def test_an_evaluation_needs_no_model_here_and_counts_what_the_server_says_it_took(
    server: ChatServer, arguments: dict[str, Any]
) -> None:
    evaluation = agent_r1.evaluate(**arguments)
    assert evaluation.success == 0.25
    metrics = {name.removeprefix("eval/all/"): value for name, value in evaluation.metrics.items()}
    assert metrics["prompt_tokens"] == 20
    assert metrics["response_tokens"] == 6
    assert metrics["requests"] == metrics["steps"] == 2
    assert metrics["tool_calls"] == 1
    assert "failed" not in metrics
    first = server.bodies[0]
    assert (first["model"], first["max_tokens"], first["temperature"]) == ("tiny", 50, 0.0)
    assert [tool["function"]["name"] for tool in first["tools"]] == ["price", "calculate"]
    seeds = sorted(body["seed"] for body in server.bodies)
    assert len(set(seeds)) == 8
    server.requests.clear()
    agent_r1.evaluate(**arguments)
    assert sorted(body["seed"] for body in server.bodies) == seeds


def test_the_model_to_evaluate_is_the_name_at_the_server(server: ChatServer, arguments: dict[str, Any]) -> None:
    agent_r1.evaluate(**arguments, model="large")
    assert {body["model"] for body in server.bodies} == {"large"}


def test_tokens_of_failed_attempts_are_counted(server: ChatServer, arguments: dict[str, Any]) -> None:
    failed: list[dict[str, Any]] = []

    def fail_once(body: dict[str, Any]) -> Any:
        if body["messages"][-1]["role"] == "tool" and not failed:
            failed.append(body)
            return 400, "{}"
        return shopper(body)

    server.reply = fail_once
    metrics = agent_r1.evaluate(**arguments).metrics
    assert metrics["eval/all/prompt_tokens"] == (4 * 20 + 10) / 4
    assert "eval/all/failed" not in metrics


def test_a_check_tries_episodes_and_skips_what_needs_tokens(server: ChatServer, arguments: dict[str, Any]) -> None:
    report = agent_r1.check(**arguments, groups=2, members=2)
    results = {result.title: result for result in report.results}
    assert results["model"].seen == "at the server"
    assert results["trial episodes"].seen == "4 episodes: done 4"
    assert results["tool use"].seen == "calls: price 4; malformed actions: 0"
    assert results["tokens in the loss"].skipped
    assert results["engine and trainer"].skipped
    assert "chat template" not in results


def test_training_is_refused_before_anything_is_made(server: ChatServer, arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="engine=openai takes messages and tells no token ids") as refused:
        agent_r1.train(**arguments)
    assert "\n" not in str(refused.value)
    assert not server.requests


@pytest.mark.parametrize(
    ("extra", "models", "reason"),
    [
        ([], (401, '{"error": {"message": "wrong key"}}'), "refused the request with 401: wrong key"),
        ([], {"data": []}, "lists no model; name one"),
        ([], (404, "{}"), "404"),
        (["engine.servers.urls=[http://127.0.0.1:9]"], {}, "http://127.0.0.1:9/v1 cannot be reached"),
    ],
)
def test_a_server_that_cannot_be_used_is_one_line_before_the_first_episode(
    server: ChatServer, arguments: dict[str, Any], extra: list[str], models: Any, reason: str
) -> None:
    server.models = models
    arguments["overrides"] += extra
    with pytest.raises(EngineError, match=reason) as failed:
        agent_r1.evaluate(**arguments)
    assert "\n" not in str(failed.value)
    assert not server.requests


def test_a_server_without_a_list_of_models_serves_the_named_one(server: ChatServer, arguments: dict[str, Any]) -> None:
    server.models = (404, "{}")
    assert agent_r1.evaluate(**arguments, model="large").success == 0.25


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        (["engine.servers.urls=[]"], "engine=openai needs a server: engine.servers.urls="),
        (["engine.servers.key_env=NO_SUCH_KEY"], "NO_SUCH_KEY, which engine.servers.key_env names, is not set"),
        (["engine.arguments.leave_out=[seed]"], "leave_out"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(arguments: dict[str, Any], extra: list[str], reason: str) -> None:
    arguments["overrides"] += extra
    with pytest.raises(ConfigError, match=reason):
        agent_r1.evaluate(**arguments)


def test_an_agent_of_ones_own_is_evaluated_with_the_model_at_the_server(
    server: ChatServer, arguments: dict[str, Any], tmp_path: Path
) -> None:
    agent = tmp_path / "their_agent.py"
    agent.write_text(THEIR_AGENT)
    arguments["overrides"] += ["data.agent_name=gateway", f"agent.function={agent}:solve", "env.tools=[]"]
    evaluation = agent_r1.evaluate(**arguments)
    assert evaluation.success == 0.25
    metrics = {name.removeprefix("eval/all/"): value for name, value in evaluation.metrics.items()}
    assert metrics["prompt_tokens"] == 20
    assert metrics["requests"] == metrics["steps"] == 2
    assert "failed" not in metrics
    assert [tool["function"]["name"] for tool in server.bodies[0]["tools"]] == ["price"]
    assert len({body["seed"] for body in server.bodies}) == 8
    told = [body["messages"][-1]["content"] for body in server.bodies if body["messages"][-1]["role"] == "tool"]
    assert told == ["3"] * 4


THEIR_AGENT = """
from openai import OpenAI

PRICE = {"type": "function", "function": {"name": "price", "parameters": {"type": "object", "properties": {}}}}


def solve(task, base_url, api_key):
    client = OpenAI(base_url=base_url, api_key=api_key)
    messages = task["prompt"]
    while True:
        response = client.chat.completions.create(model="any", messages=messages, tools=[PRICE])
        assert (response.usage.prompt_tokens, response.usage.completion_tokens) == (10, 3)
        message = response.choices[0].message
        if not message.tool_calls:
            return message.content
        messages.append(message)
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "3"} for call in message.tool_calls]
"""


def test_the_key_of_a_variable_is_sent(
    server: ChatServer, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_KEY", "secret")
    arguments["overrides"].append("engine.servers.key_env=SHOP_KEY")
    agent_r1.evaluate(**arguments)
    assert {headers["Authorization"] for _, headers, _ in server.requests} == {"Bearer secret"}


def test_a_server_that_refuses_every_request_ends_the_evaluation_with_its_reason(
    server: ChatServer, arguments: dict[str, Any]
) -> None:
    server.reply = lambda body: (400, '{"error": {"message": "no tools here"}}')
    with pytest.raises(RolloutsFailingError, match="no tools here"):
        agent_r1.evaluate(**arguments)
