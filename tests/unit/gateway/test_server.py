"""The gateway over HTTP: the official client, streams, and requests that cannot be served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from agent_r1.chat import ChatRenderer
from agent_r1.config import AgentConfig
from agent_r1.engines import Engine
from agent_r1.gateway import Gateway
from agent_r1.types import StopReason, Trajectory
from tests.helpers.gateway_agents import CALL, PRICE, TASK, replies_in_order, roll_out

QUESTION = [{"role": "user", "content": "What do 3 tea cost?"}]
Client = Callable[[httpx.AsyncClient, dict[str, Any]], Awaitable[Any]]


def served(engine: Engine, renderer: ChatRenderer, client: Client, **settings: Any) -> Trajectory:
    """One rollout whose agent is `client`, a remote program with the given address."""

    async def work(gateway: Gateway) -> None:
        while gateway._url is None:
            await asyncio.sleep(0.005)
        async with httpx.AsyncClient(base_url=gateway._url, timeout=20) as http:
            given = (await http.post("/rollouts")).json()
            try:
                await client(http, given)
            finally:
                await http.post(given["base_url"] + "/finish", json={})

    [trajectory] = roll_out(engine, renderer, AgentConfig(remote=True), beside=work, **settings)
    return trajectory


def test_a_response_has_openais_shape(renderer: ChatRenderer, tokenizer: Any) -> None:
    async def client(http: httpx.AsyncClient, given: dict[str, Any]) -> None:
        body = {"model": "any", "messages": QUESTION, "tools": [PRICE], "temperature": 0.1, "logprobs": True}
        response = await http.post(given["base_url"] + "/chat/completions", json=body)
        assert response.status_code == 200, response.text
        assert response.headers["x-agent-r1-step"] == "0"
        found = response.json()
        [choice] = found["choices"]
        assert choice["finish_reason"] == "tool_calls"
        [call] = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "price"
        assert json.loads(call["function"]["arguments"]) == {"item": "tea"}
        assert len(choice["logprobs"]["content"]) == found["usage"]["completion_tokens"]
        models = await http.get(given["base_url"] + "/models")
        assert [model["id"] for model in models.json()["data"]] == ["policy"]

    trajectory = served(replies_in_order(tokenizer, CALL), renderer, client)
    assert len(trajectory.steps) == 1, trajectory.error


def test_the_temperature_of_a_request_is_ignored(renderer: ChatRenderer, tokenizer: Any) -> None:
    """The policy is trained at the temperature it is sampled at; log-probs of another would be wrong."""
    engine = replies_in_order(tokenizer, "12")

    async def client(http: httpx.AsyncClient, given: dict[str, Any]) -> None:
        body = {"model": "m", "messages": QUESTION, "temperature": 0, "top_p": 0.5, "seed": 3, "max_tokens": 7}
        assert (await http.post(given["base_url"] + "/chat/completions", json=body)).status_code == 200

    served(engine, renderer, client)
    [(_, sampling)] = engine.requests
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (1.0, 1.0, 7)


def test_fields_that_frameworks_send_about_sampling_are_ignored(renderer: ChatRenderer, tokenizer: Any) -> None:
    """`response_format` as the OpenAI Agents SDK sends it for an agent with an output type."""
    engine = replies_in_order(tokenizer, "12")
    schema = {"properties": {"total": {"type": "integer"}}, "required": ["total"], "type": "object"}
    output = {"type": "json_schema", "json_schema": {"name": "final_output", "strict": True, "schema": schema}}

    async def client(http: httpx.AsyncClient, given: dict[str, Any]) -> None:
        body = {"model": "gpt-4.1", "messages": QUESTION, "response_format": output, "frequency_penalty": 0.1}
        body |= {"presence_penalty": 0.1, "reasoning_effort": "low", "verbosity": "low", "logit_bias": {"5": 1}}
        for more in ({}, {"stream": True}):
            response = await http.post(given["base_url"] + "/chat/completions", json=body | more)
            assert response.status_code == 200, response.text

    trajectory = served(engine, renderer, client)
    assert [sampling.temperature for _, sampling in engine.requests] == [1.0, 1.0]
    assert [step.prompt_ids for step in trajectory.steps] == [prompt for prompt, _ in engine.requests]


def test_any_model_can_be_looked_up(renderer: ChatRenderer, tokenizer: Any) -> None:
    async def client(http: httpx.AsyncClient, given: dict[str, Any]) -> None:
        for name in ("gpt-4.1", "openai/gpt-4.1"):
            assert (await http.get(f"{given['base_url']}/models/{name}")).json()["id"] == name
        unknown = await http.get(given["base_url"].replace("/v1", "x/v1") + "/models/gpt-4.1")
        assert unknown.status_code == 404

    served(replies_in_order(tokenizer, "12"), renderer, client)


def test_an_unknown_path_names_those_that_are_served(renderer: ChatRenderer, tokenizer: Any) -> None:
    async def client(http: httpx.AsyncClient, given: dict[str, Any]) -> None:
        for path in ("/responses", "/embeddings"):
            refused = await http.post(given["base_url"] + path, json={"model": "m", "input": "hi"})
            message = refused.json()["error"]["message"]
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "unknown_url")
            assert "this server has POST /{token}/v1/chat/completions, " in message
            assert ("set_default_openai_api('chat_completions')" in message) is (path == "/responses")
        wrong_method = await http.get(given["base_url"] + "/chat/completions")
        assert wrong_method.status_code == 405

    served(replies_in_order(tokenizer, "12"), renderer, client)


@pytest.mark.parametrize("reply", ["3 tea cost 12", CALL, f"Let me see.{CALL}"])
def test_a_stream_says_what_the_whole_response_says(renderer: ChatRenderer, tokenizer: Any, reply: str) -> None:
    async def client(http: httpx.AsyncClient, given: dict[str, Any]) -> None:
        body = {"model": "m", "messages": QUESTION, "tools": [PRICE]}
        whole = (await http.post(given["base_url"] + "/chat/completions", json=body)).json()["choices"][0]
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        response = await http.post(given["base_url"] + "/chat/completions", json=body)
        assert response.headers["content-type"].startswith("text/event-stream")
        events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
        assert events[-1] == "[DONE]"
        chunks = [json.loads(event) for event in events[:-1]]
        assert chunks[-1]["usage"]["completion_tokens"] > 0
        deltas = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
        content = "".join(delta["delta"].get("content") or "" for delta in deltas)
        assert content == (whole["message"]["content"] or "")
        names = [call["function"]["name"] for delta in deltas for call in delta["delta"].get("tool_calls", [])]
        assert names == [call["function"]["name"] for call in whole["message"].get("tool_calls", [])]
        assert deltas[-1]["finish_reason"] == whole["finish_reason"]

    trajectory = served(replies_in_order(tokenizer, reply), renderer, client)
    assert len(trajectory.steps) == 2, trajectory.error


def test_plain_completions_are_steps_too(renderer: ChatRenderer, tokenizer: Any) -> None:
    async def client(http: httpx.AsyncClient, given: dict[str, Any]) -> None:
        url = given["base_url"] + "/completions"
        body = {"model": "m", "prompt": "tea and ", "max_tokens": 20, "echo": True}
        first = (await http.post(url, json=body)).json()["choices"][0]
        assert first["text"] == "tea and milk"
        ids = list(renderer.encode("tea"))
        second = await http.post(url, json={"model": "m", "prompt": ids, "n": 2, "stream": True})
        assert "milk" in second.text
        several = await http.post(url, json={"model": "m", "prompt": ["a", "b"]})
        assert several.status_code == 400

    trajectory = served(replies_in_order(tokenizer, "milk"), renderer, client)
    assert [step.parent for step in trajectory.steps] == [-1, -1, -1], trajectory.error
    assert trajectory.steps[1].prompt_ids == renderer.encode("tea")


@pytest.mark.whole
def test_requests_that_cannot_be_served_have_a_reason_in_openais_shape(renderer: ChatRenderer, tokenizer: Any) -> None:
    chat = "/chat/completions"
    wrong: list[tuple[str, Any, int]] = [
        (chat, {"model": "m"}, 400),
        (chat, {"model": "m", "messages": []}, 400),
        (chat, {"model": "m", "messages": [{"role": "king", "content": "?"}]}, 400),
        (chat, {"model": "m", "messages": [{"role": "user", "content": 3}]}, 400),
        (chat, {"model": "m", "messages": QUESTION, "n": 0}, 400),
        (chat, {"model": "m", "messages": QUESTION, "n": 9}, 400),
        (chat, {"model": "m", "messages": QUESTION, "tools": [{"type": "web"}]}, 400),
        (chat, {"model": "m", "messages": QUESTION, "surprise": 1}, 400),
        (chat, [1, 2], 400),
        (chat, b"{not json", 400),
        (chat, b'{"model": "m", "messages": ' + b"[" * 5000, 400),
        (chat, {"model": "m", "messages": [{"role": "user", "content": "tea " * 5000}]}, 400),
        ("/completions", {"model": "m", "prompt": []}, 400),
        ("/completions", {"model": "m", "prompt": ""}, 400),
        ("/reward", {}, 422),
        ("/reward", {"reward": "1"}, 422),
        ("/reward", {"reward": True}, 422),
        ("/reward", {"reward": 10**400}, 422),
        ("/reward", {"reward": 1, "step": 99}, 422),
        ("/reward", {"reward": 1, "step": "0"}, 422),
        ("/reward", {"reward": 1, "id": "chatcmpl-0"}, 422),
        ("/reward", {"reward": 1, "stepp": 0}, 422),
        ("/reward", {"reward": 1}, 409),
        ("/finish", {"answer": [1]}, 422),
        ("/embeddings", {}, 404),
    ]

    async def client(http: httpx.AsyncClient, given: dict[str, Any]) -> None:
        for path, body, status in wrong:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            response = await http.post(given["base_url"] + path, content=content)
            assert (path, body, response.status_code) == (path, body, status), response.text
            error = response.json()["error"]
            assert error["message"]
            assert error.keys() == {"message", "type", "param", "code"}
        assert (await http.get(given["base_url"] + chat)).status_code == 405
        ok = await http.post(given["base_url"] + chat, json={"model": "m", "messages": QUESTION})
        assert ok.status_code == 200, ok.text

    trajectory = served(replies_in_order(tokenizer, "12"), renderer, client)
    assert len(trajectory.steps) == 1, trajectory.error


@pytest.mark.whole
def test_a_wrong_address_a_web_page_and_a_foreign_host_are_refused(renderer: ChatRenderer, tokenizer: Any) -> None:
    body = {"model": "m", "messages": QUESTION}

    async def client(http: httpx.AsyncClient, given: dict[str, Any]) -> None:
        wrong = await http.post("/guessed/v1/chat/completions", json=body)
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (404, "unknown_rollout")
        url = given["base_url"] + "/chat/completions"
        for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
            refused = await http.post(url, json=body, headers=headers)
            assert refused.status_code == 403
            assert "error" in refused.json()
        assert (await http.post(url, json=body)).status_code == 200
        assert (await http.get("/health")).json() == {"rollouts_open": 1}

    served(replies_in_order(tokenizer, "12"), renderer, client)


def test_with_a_key_every_request_needs_it(
    renderer: ChatRenderer, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_R1_GATEWAY_KEY", "secret")
    body = {"model": "m", "messages": QUESTION}

    async def work(gateway: Gateway) -> None:
        while gateway._url is None:
            await asyncio.sleep(0.005)
        async with httpx.AsyncClient(base_url=gateway._url, timeout=20) as http:
            assert (await http.post("/rollouts")).status_code == 401
            key = {"Authorization": "Bearer secret"}
            given = (await http.post("/rollouts", headers=key)).json()
            assert given["api_key"] == "secret"
            url = given["base_url"] + "/chat/completions"
            assert (await http.post(url, json=body, headers={"Authorization": "Bearer wrong"})).status_code == 401
            assert (await http.post(url, json=body, headers=key)).status_code == 200
            await http.post(given["base_url"] + "/finish", json={"answer": 12}, headers=key)

    [trajectory] = roll_out(replies_in_order(tokenizer, "11"), renderer, AgentConfig(remote=True), beside=work)
    assert trajectory.outcome_reward == 1.0, trajectory.error


@pytest.mark.whole
def test_the_official_client_works_unmodified(renderer: ChatRenderer, tokenizer: Any) -> None:
    openai = pytest.importorskip("openai", reason="the openai client is not installed: pip install 'agent-r1[dev]'")

    async def client(http: httpx.AsyncClient, given: dict[str, Any]) -> None:
        async with openai.AsyncOpenAI(base_url=given["base_url"], api_key=given["api_key"]) as model:
            messages: list[Any] = list(QUESTION)
            first = await model.chat.completions.create(model="gpt-5", messages=messages, tools=[PRICE])
            message = first.choices[0].message
            messages.append(message)
            messages.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "4"})
            stream = await model.chat.completions.create(model="gpt-5", messages=messages, tools=[PRICE], stream=True)
            parts = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
            assert "".join(parts) == "12"
            with pytest.raises(openai.BadRequestError) as error:
                await model.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "a " * 5000}])
            assert error.value.code == "context_length_exceeded"

    engine = replies_in_order(tokenizer, CALL, "12")
    trajectory = served(engine, renderer, client)
    assert [step.parent for step in trajectory.steps] == [-1, 0], trajectory.error
    assert trajectory.stop_reason is StopReason.CONTEXT_FULL


def test_a_client_that_hangs_up_frees_the_engine(renderer: ChatRenderer, tokenizer: Any) -> None:
    class Slow:
        context_length = 4096
        running = 0

        async def generate(self, prompt_ids: Any, sampling: Any) -> Any:
            if self.running is None:
                raise AssertionError
            self.running += 1
            try:
                await asyncio.sleep(600)
            finally:
                self.running -= 1

    engine = Slow()

    async def client(http: httpx.AsyncClient, given: dict[str, Any]) -> None:
        body = {"model": "m", "messages": QUESTION}
        async with httpx.AsyncClient() as other:
            call = asyncio.ensure_future(other.post(given["base_url"] + "/chat/completions", json=body, timeout=60))
            while not engine.running:
                await asyncio.sleep(0.005)
            call.cancel()
        while engine.running:
            await asyncio.sleep(0.005)

    trajectory = served(engine, renderer, client)
    assert trajectory.stop_reason is StopReason.AGENT_ERROR  # it made no call that was answered
    assert TASK.task_id in (trajectory.error or "")
