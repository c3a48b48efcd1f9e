"""Agents on a server: a real HTTP server on loopback, its streams, its refusals and its failures."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from agent_r1.errors import EngineError
from agent_r1.flows import FlowEvent, TokensSampled
from agent_r1.inference import ChatSession, connect_agent
from agent_r1.inference.server_client import ServerEngine
from agent_r1.tools import BaseTool
from agent_r1.types import Observation, SamplingParams, StopReason
from tests.helpers.shop import LOOK_UP

pytest.importorskip("httpx")

CALL_CHUNKS = [
    {"delta": {"role": "assistant", "content": "Let me"}},
    {"delta": {"content": " look."}},
    {"delta": {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "look_up", "arguments": '{"it'}}]}},
    {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": 'em": "apple"}'}}]}},
    {"delta": {}, "finish_reason": "tool_calls"},
]
ANSWER_CHUNKS = [{"delta": {"content": "It costs"}}, {"delta": {"content": " 7."}, "finish_reason": "stop"}]


class _Handler(BaseHTTPRequestHandler):
    server: Any

    def do_GET(self) -> None:
        self._answer(200, json.dumps({"data": [{"id": "tiny"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, dict(self.headers), body))
        reply = self.server.replies.pop(0)
        if isinstance(reply, tuple):
            self._answer(*reply)
            return
        events = [entry if isinstance(entry, str) else json.dumps({"choices": [entry]}) for entry in reply]
        self._answer(200, "".join(f"data: {event}\n\n" for event in events), "text/event-stream")

    def _answer(self, status: int, text: str, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: Any) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Any]:
    running: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    running.requests, running.replies = [], []
    running.url = f"http://127.0.0.1:{running.server_address[1]}"
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.shutdown()
    thread.join()
    running.server_close()


def ask(server: Any, *, url: str | None = None) -> Any:
    """One turn of the engine."""

    async def run() -> Any:
        engine = ServerEngine(url or server.url, timeout=5.0)
        observation = Observation(messages=({"role": "user", "content": "hi"},))
        try:
            return await engine.chat(observation, SamplingParams(), lambda text: None)
        finally:
            await engine.close()

    return asyncio.run(run())


def test_an_agent_on_a_server_streams_its_text_and_runs_its_tools_here(server: Any) -> None:
    BaseTool.registry.add("look_up", LOOK_UP, replaceable=True)
    server.replies = [[*CALL_CHUNKS, "[DONE]"], ANSWER_CHUNKS, ANSWER_CHUNKS]
    agent = connect_agent(server.url, "tiny", overrides=["env.tools=[look_up]"], key="secret")
    texts: list[str] = []

    def observe(event: FlowEvent) -> None:
        if isinstance(event, TokensSampled):
            texts.append(event.text)

    async def talk() -> ChatSession:
        async with agent.opened():
            session = ChatSession(agent)
            await session.say("an apple?", observer=observe)
            await session.say("thanks")
            return session

    session = asyncio.run(talk())
    assert texts == ["Let me", " look.", "It costs", " 7."]
    roles = [message["role"] for message in session.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    path, headers, second = server.requests[1]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer secret"
    assert second["messages"][1]["tool_calls"][0]["function"] == {"name": "look_up", "arguments": '{"item": "apple"}'}
    assert second["messages"][2]["tool_call_id"] == "c1"
    assert second["tools"][0]["function"]["name"] == "look_up"
    assert server.requests[2][2]["messages"][-2:] == [
        {"role": "assistant", "content": "It costs 7."},
        {"role": "user", "content": "thanks"},
    ]


def test_arguments_that_are_no_json_object_are_a_parse_error_that_the_model_reads(server: Any) -> None:
    broken = {"delta": {"tool_calls": [{"index": 0, "function": {"name": "look_up", "arguments": "{apple"}}]}}
    server.replies = [[broken, {"delta": {}, "finish_reason": "tool_calls"}]]
    completion, action = ask(server)
    assert action.tool_calls == ()
    assert "arguments of look_up are not a JSON object" in action.parse_error
    assert completion.finish_reason == "stop"


def test_a_turn_that_the_server_cuts_is_cut(server: Any) -> None:
    server.replies = [[{"delta": {"content": "It co"}, "finish_reason": "length"}]]
    completion, action = ask(server)
    assert completion.finish_reason == "length"
    assert action.parse_error is not None


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ((401, '{"error": {"message": "wrong key"}}'), r"401: wrong key; give its key \(--key-env NAME\)"),
        ((404, '{"error": "no model"}'), "404: no model; is the model's name right"),
        ((500, "<html>broken</html>"), "500: <html>broken"),
        (["not json"], "sent an event that is not a JSON object"),
        (['{"error": {"message": "out of memory"}}'], "reports an error: .*out of memory"),
        ([{"delta": {"content": "half"}}], "ended in the middle of a turn"),
        ([], "ended in the middle of a turn"),
    ],
)
def test_what_a_server_refuses_or_breaks_is_one_clear_error(server: Any, reply: Any, reason: str) -> None:
    server.replies = [reply]
    with pytest.raises(EngineError, match=reason):
        ask(server)


def test_a_server_that_is_not_there_is_named(server: Any) -> None:
    with pytest.raises(EngineError, match=r"http://127\.0\.0\.1:9/v1 cannot be reached"):
        ask(server, url="http://127.0.0.1:9")
    with pytest.raises(EngineError, match="must begin with http"):
        ask(server, url="localhost:8000")


def test_a_failing_server_leaves_the_conversation_as_it_was(server: Any) -> None:
    server.replies = [ANSWER_CHUNKS, (500, "busy")]
    agent = connect_agent(server.url, "tiny")

    async def talk() -> tuple[ChatSession, Any]:
        async with agent.opened():
            session = ChatSession(agent)
            await session.say("hi")
            return session, await session.say("again")

    session, failed = asyncio.run(talk())
    assert failed.stop_reason is StopReason.ENGINE_ERROR
    assert "500: busy" in failed.error
    assert len(session.messages) == 2
