"""Bodies that no client should send: always a 4xx with a reason, never a failure of the server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_r1.serving import ModelServer, create_app
from tests.helpers.served_model import scripted_agent

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
ROLES = st.sampled_from(["user", "assistant", "tool", "system", "developer", "robot"])
CALLS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "id": st.sampled_from(["a", "b", 3]),
            "type": st.sampled_from(["function", "other"]),
            "function": st.fixed_dictionaries(
                {},
                optional={"name": st.text(max_size=5) | JSON, "arguments": st.sampled_from(["{}", "{", "[]"]) | JSON},
            ),
        },
    ),
    max_size=2,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={"role": ROLES | JSON, "content": st.text(max_size=8) | JSON, "tool_calls": CALLS | JSON,
                  "tool_call_id": st.sampled_from(["a", "b"]) | JSON, "name": JSON},
    ),
    max_size=3,
)  # fmt: skip
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "model": st.just("tiny") | JSON,
    "messages": MESSAGES | JSON,
    "prompt": st.text(max_size=8) | st.lists(st.integers(-1, 600), max_size=3) | JSON,
    "task": JSON,
    "tools": st.lists(
        st.fixed_dictionaries({"type": st.just("function"), "function": st.fixed_dictionaries(
            {"name": st.sampled_from(["price", "x y", ""])}, optional={"parameters": JSON, "description": JSON})}),
        max_size=2) | JSON,
    "tool_choice": st.sampled_from(["auto", "none", "required"]) | JSON,
    "max_tokens": st.integers(-1, 20) | JSON,
    "temperature": st.sampled_from([0, 1e-9, 0.5, 2]) | JSON,
    "top_p": st.floats(0, 2) | JSON,
    "top_k": st.integers(-2, 5) | JSON,
    "seed": st.integers() | JSON,
    "stop": st.text(max_size=3) | JSON,
    "n": st.integers(-1, 3) | JSON,
    "stream": st.booleans() | JSON,
    "stream_options": JSON,
    "logprobs": st.booleans() | st.integers(0, 3) | JSON,
    "top_logprobs": JSON,
    "echo": st.booleans(),
    "return_token_ids": st.booleans(),
    "parallel_tool_calls": st.booleans(),
    "response_format": JSON,
    "zzz": JSON,
}  # fmt: skip
BODIES = st.fixed_dictionaries({}, optional=FIELDS).map(lambda body: {"model": "tiny", **body})
PATHS = st.sampled_from(["/v1/chat/completions", "/v1/completions", "/v1/agent"])


@pytest.fixture(scope="module")
def app(model_folder: Path) -> Any:
    agent = scripted_agent(model_folder, lambda prompt: "<tool_call>no</tool_call>", "rollout.context_length=null")
    return create_app(ModelServer(agent, name="tiny"))


def ask(app: Any, path: str, content: bytes) -> httpx.Response:
    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post(path, content=content)

    return asyncio.run(run())


def assert_answered(response: httpx.Response) -> None:
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        assert response.json()["error"]["message"]
    assert "Traceback" not in response.text


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(path=PATHS, body=BODIES)
def test_any_json_body_is_answered_or_refused_with_a_reason(app: Any, path: str, body: Any) -> None:
    assert_answered(ask(app, path, json.dumps(body).encode()))


@settings(deadline=None)
@given(path=PATHS, content=st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_refused_with_a_reason(app: Any, path: str, content: bytes) -> None:
    response = ask(app, path, content)
    assert_answered(response)
    assert response.status_code in (400, 404)


@pytest.mark.parametrize(
    "content",
    [b"{" * 100_000, b'{"a":' * 5000, b'{"model": "tiny", "messages": ' + b"[" * 70 + b"]" * 70 + b"}", b'{"n": 1e999}',
     b'{"model": "tiny", "model": "tiny"}', b'{"seed": ' + b"9" * 6000 + b"}"],
    ids=lambda content: content[:20].decode(),
)  # fmt: skip
def test_hostile_json_is_refused(app: Any, content: bytes) -> None:
    response = ask(app, "/v1/chat/completions", content)
    assert response.status_code == 400
    assert_answered(response)
