"""Agents of one's own whose model is behind a chat API: the same gateway, without token ids."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_r1.chat import server_renderer
from agent_r1.config import AgentConfig
from agent_r1.engines.openai import OpenAIEngine
from agent_r1.types import StopReason, Trajectory
from tests.helpers.chat_server import ChatServer, answer, chat_server
from tests.helpers.gateway_agents import PRICE, roll_out

httpx = pytest.importorskip("httpx")
pytest.importorskip("starlette", reason="the gateway needs the extra 'serve'")

QUESTION = [{"role": "user", "content": "What do 3 tea cost?"}]
Ask = Callable[..., Any]


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with chat_server() as running:
        yield running


@pytest.fixture
def play(server: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Trajectory]:
    """Roll out one task with an agent that does what a test says with `ask(path, **fields)`."""

    def playing(script: Callable[[Ask], Any], **limits: Any) -> Trajectory:
        def solve(task: dict[str, Any], base_url: str, api_key: str) -> str:
            with httpx.Client(headers={"Authorization": f"Bearer {api_key}"}, timeout=20) as client:
                return str(
                    script(lambda path, **fields: client.post(f"{base_url}{path}", json={"model": "any", **fields}))
                )

        monkeypatch.setattr("tests.unit.gateway.test_chat_api.solve", solve, raising=False)
        settings = AgentConfig(function="tests.unit.gateway.test_chat_api:solve")
        engine = OpenAIEngine([server.url], model="tiny")
        [trajectory] = roll_out(engine, server_renderer(), settings, **limits)
        return trajectory

    return playing


def test_a_conversation_is_recorded_step_by_step(server: ChatServer, play: Callable[..., Trajectory]) -> None:
    server.replies = [answer("", [("price", '{"item": "tea"}')]), answer("12")]

    def script(ask: Ask) -> str:
        message = ask("/chat/completions", messages=QUESTION, tools=[PRICE]).json()["choices"][0]["message"]
        [call] = message["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": "4"}
        asked = ask("/chat/completions", messages=[*QUESTION, message, result], tools=[PRICE])
        return str(asked.json()["choices"][0]["message"]["content"])

    trajectory = play(script)
    assert trajectory.outcome_reward == 1
    assert [step.parent for step in trajectory.steps] == [-1, 0]
    assert [call.name for call in trajectory.steps[0].action.tool_calls] == ["price"]
    assert all(not step.prompt_ids and not step.action_ids for step in trajectory.steps)
    assert server.bodies[1]["messages"][-1]["content"] == "4"


def test_completions_of_one_prompt_have_seeds_of_their_own(server: ChatServer, play: Callable[..., Trajectory]) -> None:
    server.reply = lambda body: answer(str(body["seed"]))

    def texts(ask: Ask) -> list[str]:
        choices = ask("/chat/completions", messages=QUESTION, n=2).json()["choices"]
        return [choice["message"]["content"] for choice in choices]

    first = play(lambda ask: json.dumps(texts(ask) + texts(ask)))
    again = play(lambda ask: json.dumps(texts(ask) + texts(ask)))
    seeds = [step.action.text for step in first.steps]
    assert len(set(seeds)) == 4
    assert sorted(seeds) == sorted(step.action.text for step in again.steps)


def test_a_stop_text_ends_the_answer_and_what_would_follow_it(
    server: ChatServer, play: Callable[..., Trajectory]
) -> None:
    server.replies = [answer("12. Question: what", [("price", "{}")])]

    def script(ask: Ask) -> str:
        [choice] = ask("/chat/completions", messages=QUESTION, tools=[PRICE], stop=[". Question"]).json()["choices"]
        assert choice["finish_reason"] == "stop"
        assert "tool_calls" not in choice["message"]
        return str(choice["message"]["content"])

    assert play(script).outcome_reward == 1


def test_a_stream_has_the_answer_and_what_the_server_says_it_took(
    server: ChatServer, play: Callable[..., Trajectory]
) -> None:
    server.replies = [answer("12", usage={"prompt_tokens": 9, "completion_tokens": 2})]

    def script(ask: Ask) -> str:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        lines = ask("/chat/completions", messages=QUESTION, **options).text.splitlines()
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        assert chunks[-1]["usage"] == {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
        return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])

    assert play(script).outcome_reward == 1


@pytest.mark.parametrize(
    ("path", "fields", "wanted"),
    [
        ("/chat/completions", {"messages": QUESTION, "logprobs": True}, "logprobs; leave it out"),
        ("/chat/completions", {"messages": QUESTION, "return_token_ids": True}, "return_token_ids"),
        ("/completions", {"prompt": "What"}, "raw prompts; send messages to /chat/completions"),
        ("/completions", {"prompt": [1, 2]}, "raw prompts"),
    ],
)
def test_what_needs_tokens_is_refused(
    server: ChatServer, play: Callable[..., Trajectory], path: str, fields: dict[str, Any], wanted: str
) -> None:
    server.replies = [answer("12")]

    def script(ask: Ask) -> str:
        refused = ask(path, **fields)
        assert refused.status_code == 400
        assert wanted in refused.json()["error"]["message"]
        return str(ask("/chat/completions", messages=QUESTION).json()["choices"][0]["message"]["content"])

    assert play(script).outcome_reward == 1
    assert len(server.bodies) == 1


def test_calls_beyond_max_steps_are_refused(server: ChatServer, play: Callable[..., Trajectory]) -> None:
    server.reply = lambda body: answer("hm")

    def script(ask: Ask) -> str:
        while ask("/chat/completions", messages=QUESTION).status_code == 200:
            pass
        raise RuntimeError("refused")

    trajectory = play(script, max_steps=3)
    assert trajectory.stop_reason is StopReason.MAX_STEPS
    assert len(trajectory.steps) == 3
