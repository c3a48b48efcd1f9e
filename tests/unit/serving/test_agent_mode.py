"""The agent mode: the server runs the tools, and the client sees the whole trajectory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_r1.tools import BaseTool, FunctionTool, ToolResponse
from recipes.quickstart.shop import Basket, task_row
from tests.helpers.served_model import Served, scripted_agent, served

PRICES = {"egg": 3, "tea": 4}
LOOK = '<tool_call>\n{"name": "price", "arguments": {"item": "egg"}}\n</tool_call>'
SUM = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "2*3"}}\n</tool_call>'


@pytest.fixture(scope="module")
def shop(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An agent that looks a price up, calculates and answers."""
    tasks = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    tasks.write_text(json.dumps(task_row(Basket(quantities={"egg": 2}, prices=PRICES))) + "\n")

    def reply(prompt: str) -> str:
        return LOOK if '"price"' not in prompt else SUM if '"calculate"' not in prompt else "6"

    agent = scripted_agent(model_folder, reply, f"data.eval=[{tasks}]", "rollout.context_length=null")
    with served(agent) as running:
        yield running


def submit(answer: str) -> ToolResponse:
    """Give the answer, which ends the episode."""
    return ToolResponse(text=answer, ends_episode=True)


@pytest.mark.whole
def test_the_answer_of_a_call_that_ends_the_episode_is_the_answer(model_folder: Path) -> None:
    made = FunctionTool(submit, name="tests_submit")
    BaseTool.registry.add(made.name, made, replaceable=True)
    call = '<tool_call>\n{"name": "tests_submit", "arguments": {"answer": "6"}}\n</tool_call>'
    with served(scripted_agent(model_folder, [call], f"env.tools=[{made.name}]")) as running:
        response = play(running, messages=[{"role": "user", "content": "2*3?"}], stream=False).json()
    assert (response["answer"], response["stop_reason"]) == ("6", "done")


def play(running: Served, **fields: Any) -> httpx.Response:
    return httpx.post(f"{running.url}/v1/agent", json=fields, timeout=30)


def events_of(response: httpx.Response) -> list[tuple[str, dict[str, Any]]]:
    assert response.status_code == 200, response.text
    *blocks, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    events = []
    for block in blocks:
        kind, data = block.split("\n")
        events.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events


def test_a_task_is_played_with_tools_and_scored(shop: Served) -> None:
    task_id = shop.server.agent.tasks()[0].task_id
    events = events_of(play(shop, task=task_id, seed=1, return_token_ids=True))
    kinds = [kind for kind, _ in events]
    assert [kind for kind in kinds if kind != "tokens"] == [
        *("turn", "action", "message", "reward"),
        *("turn", "action", "message", "reward"),
        *("turn", "action", "reward", "end"),
    ]
    messages = [event for kind, event in events if kind == "message"]
    assert [(message["name"], message["content"]) for message in messages] == [("price", "3"), ("calculate", "6")]
    end = events[-1][1]
    assert (end["answer"], end["reward"], end["num_turns"]) == ("6", 1.0, 3)
    prompts = [event["prompt_token_ids"] for kind, event in events if kind == "turn"]
    sampled = [event["token_ids"] for kind, event in events if kind == "tokens"]
    assert prompts[1][: len(prompts[0]) + len(sampled[0])] == prompts[0] + sampled[0]
    assert end["usage"]["completion_tokens"] == sum(map(len, sampled))


def test_a_question_can_be_asked_in_the_world_of_a_task(shop: Served) -> None:
    question = [{"role": "user", "content": "What do 2 egg cost, please?"}]
    events = events_of(play(shop, task=0, messages=question))
    assert [event["content"] for kind, event in events if kind == "message"] == ["3", "6"]
    assert events[-1][1]["reward"] is None
    calls = [event["tool_calls"][0]["id"] for kind, event in events if kind == "action" and event["tool_calls"]]
    assert calls == [event["tool_call_id"] for kind, event in events if kind == "message"]


def test_a_question_has_no_outcome_reward(shop: Served) -> None:
    response = play(shop, messages=[{"role": "user", "content": "What do 2 egg cost?"}], stream=False)
    answer = response.json()
    assert response.status_code == 200, answer
    assert answer["reward"] is None
    assert answer["num_turns"] >= 1
    assert answer["events"][0]["type"] == "turn"
    assert "Traceback" not in response.text


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [
        ({}, 400, "give messages, or task"),
        ({"messages": [], "task": None}, 400, "at least 1"),
        ({"messages": [{"role": "user", "content": "x"}], "task": "a"}, 404, "there is no task 'a'"),
        ({"task": 1}, 404, "there is no task 1; there are 1"),
        ({"task": -1}, 404, "there is no task -1"),
        ({"task": True}, 400, "task"),
        ({"task": "../../etc/passwd"}, 404, "there is no task"),
        ({"task": [3]}, 400, "valid string"),
        ({"messages": [{"role": "user", "content": "x"}], "tools": []}, 400, "unknown fields: tools"),
        ({"messages": [{"role": "user", "content": "x"}], "model": "other"}, 404, "it serves 'tiny'"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "role must be one of"),
    ],
    ids=str,
)
def test_a_wrong_request_is_refused(shop: Served, fields: dict[str, Any], status: int, reason: str) -> None:
    response = play(shop, **fields)
    assert response.status_code == status
    assert reason in response.json()["error"]["message"]


def test_a_client_that_leaves_ends_its_episode(shop: Served) -> None:
    body = {"messages": [{"role": "user", "content": "What do 2 egg cost?"}]}
    with httpx.stream("POST", f"{shop.url}/v1/agent", json=body) as response:
        assert response.status_code == 200
    shop.wait_until(lambda: shop.server.slots.num_taken == 0)
