"""Arbitrary requests to an environment service: refused with a reason, never a hang, never a lost slot."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st

from agent_r1.codec import records
from agent_r1.envs import AgentEnv
from agent_r1.envs.remote.server import EnvService, ServiceLimits, create_app
from agent_r1.types import Action, Observation, StepResult, Task
from tests.helpers.fuzzing import fuzz_settings

SECONDS = 5.0
LIMITS = ServiceLimits(max_episodes=4, call_seconds=1.0, gone_seconds=0.2, body_mb=0.1, body_seconds=1.0)

words = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(["", "\x00", "é", "a/b", "..", "%2e"])
numbers = st.integers() | st.floats() | st.sampled_from([10**400, -1, 2**63, 1e308])
leaves = st.none() | st.booleans() | numbers | words
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3), max_leaves=12
)


class Echo(AgentEnv):
    """Repeats what it is told. Nothing in it fails, so that every failure is the service's."""

    def __init__(self, size: Any = None) -> None:
        self.size = size

    async def reset(self, task: Task) -> Observation:
        return Observation(messages=task.prompt)

    async def step(self, action: Action) -> StepResult:
        return StepResult(observation=Observation(text=action.text), reward=0.0)


class Server:
    """A real server in a thread, and one connection after the other to it."""

    def __init__(self) -> None:
        self.service = EnvService(Echo, name="echo", limits=LIMITS)
        config = uvicorn.Config(create_app(self.service), port=0, log_level="critical", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            self._thread.join(0.01)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]
        self._client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)

    def close(self) -> None:
        self._client.close()
        self._server.should_exit = True
        self._thread.join(10)

    async def exchange(self, request: bytes, *, patience: float = SECONDS) -> bytes:
        """All that comes back for some bytes, until the server closes the connection or has answered once."""
        async with asyncio.timeout(patience):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                writer.write(request)
                writer.write_eof()
                return await reader.read()
            except OSError:  # the server has refused the beginning of the request and closed the connection
                return b""
            finally:
                writer.close()

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
        """Status and JSON of one well-formed HTTP request; a connection that was left open is used again."""
        self._client.request(method, path, body)
        answer = self._client.getresponse()
        return answer.status, json.loads(answer.read())


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


numbers_of_episodes = itertools.count()


def good_task() -> dict[str, Any]:
    return records.task_to_json(Task(task_id="t", prompt=({"role": "user", "content": "hi"},)))


def still_serves(server: Server) -> None:
    """A good episode runs from beginning to end, and no slot is held afterwards."""
    name = f"good-{next(numbers_of_episodes)}"
    status, answer = server.ask("POST", "/episodes", dumps({"request_id": name, "task": good_task()}))
    assert (status, answer["episode_id"]) == (200, name)
    step = {"request_id": "s", "step": 1, "action": {"text": "hello"}}
    status, answer = server.ask("POST", f"/episodes/{name}/step", dumps(step))
    assert (status, answer["result"]["observation"]["text"]) == (200, "hello")
    assert server.ask("DELETE", f"/episodes/{name}")[1]["closed"] is True
    assert server.service.health()["episodes_open"] == 0


def dumps(value: Any) -> bytes:
    return json.dumps(value).encode()


def refused_or_answered(status: int, answer: Any) -> None:
    assert status < 500, answer
    if status != 200:
        assert answer is not None
        assert answer["error"]["message"]
        assert not answer["error"]["traceback"]


def end(server: Server, name: Any) -> None:
    if isinstance(name, str) and name.isascii() and name.isprintable():
        server.ask("DELETE", f"/episodes/{quote(name, safe='')}")


# Some of these are valid: the others are near misses.
identifiers = st.sampled_from(["a", "b7", "0.-_", "..", "", "a b", "x" * 200, "a/b", "../x", "\ud800"]) | leaves
parts = st.dictionaries(st.sampled_from(["type", "text", "image"]), leaves | st.fixed_dictionaries({"png": words}))
contents = words | st.lists(parts, max_size=2)
messages = st.lists(st.fixed_dictionaries({"role": leaves, "content": contents | values}) | values, max_size=3)
tasks = st.fixed_dictionaries(
    {"task_id": words, "prompt": messages},
    optional=dict.fromkeys(("agent_name", "reward_model", "env_kwargs", "data_source", "extra_info", "x"), values),
)
calls = st.fixed_dictionaries({"name": words | leaves, "arguments": values}, optional={"call_id": leaves, "x": leaves})
actions = st.fixed_dictionaries(
    {"text": words | leaves},
    optional={
        "content": leaves,
        "token_ids": st.lists(numbers, max_size=3) | values,
        "tool_calls": st.lists(calls | values, max_size=2),
        "parse_error": leaves,
        "repairs": values,
        "final_answer": leaves,
        "history_text": leaves,
        "x": leaves,
    },
)
# Arguments that the environment does not take are its error, and not the request's.
arguments = st.fixed_dictionaries({"size": values}) | values.filter(lambda value: not isinstance(value, dict))
beginnings = st.fixed_dictionaries(
    {"request_id": identifiers, "task": tasks | values}, optional={"args": arguments, "x": values}
)
steps = st.fixed_dictionaries(
    {"request_id": identifiers, "step": st.integers(-1, 3) | leaves, "action": actions | values}, optional={"x": values}
)


@fuzz_settings(0.3)
@given(body=beginnings | values)
def test_any_json_to_begin_with_is_answered_or_refused(server: Server, body: Any) -> None:
    refused_or_answered(*server.ask("POST", "/episodes", dumps(body)))
    end(server, body.get("request_id") if isinstance(body, dict) else None)
    still_serves(server)


@fuzz_settings(0.3)
@given(bodies=st.lists(steps | values, min_size=1, max_size=3))
def test_any_json_as_a_step_is_answered_or_refused(server: Server, bodies: list[Any]) -> None:
    name = f"e{next(numbers_of_episodes)}"
    assert server.ask("POST", "/episodes", dumps({"request_id": name, "task": good_task()}))[0] == 200
    for body in bodies:
        refused_or_answered(*server.ask("POST", f"/episodes/{name}/step", dumps(body)))
    end(server, name)
    still_serves(server)


@dataclass(frozen=True)
class Body:
    """A body that is large without a large `repr`."""

    start: bytes = b""
    piece: bytes = b""
    times: int = 0
    end: bytes = b""

    @property
    def content(self) -> bytes:
        return self.start + self.piece * self.times + self.end


openings = st.sampled_from([b"[", b'{"a":', b'[{"request_id":'])
raw_bodies = (
    st.builds(Body, start=st.binary(max_size=200))
    | st.builds(Body, piece=openings, times=st.integers(1, 20_000), end=st.sampled_from([b"", b"1", b"]"]))
    | st.builds(Body, start=st.just(b'{"step": '), piece=st.just(b"9"), times=st.integers(0, 20_000), end=st.just(b"}"))
    | st.builds(Body, start=st.just(b'{"a": "'), piece=st.just(b"x"), times=st.integers(0, 300_000), end=st.just(b'"}'))
    | st.builds(
        Body, start=st.sampled_from([b"NaN", b'{"a": Infinity}', b'"\\ud800"', b"\xef\xbb\xbf{}", b"{}\x00", b"nul"])
    )
)


@fuzz_settings(0.2)
@given(path=st.sampled_from(["/episodes", "/episodes/a/step"]), body=raw_bodies)
def test_any_bytes_as_a_body_are_refused(server: Server, path: str, body: Body) -> None:
    status, answer = server.ask("POST", path, body.content)
    assert 400 <= status < 500
    refused_or_answered(status, answer)
    still_serves(server)


safe = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)
headers = st.dictionaries(
    st.sampled_from(["Host", "Origin", "Authorization", "Content-Type", "Expect", "Content-Length", "Cookie", "X-A"]),
    safe
    | st.sampled_from(["localhost", "127.0.0.1:1", "[::1", "evil.example", "100-continue", "chunked", "-1", "1e9"]),
    max_size=3,
)


@fuzz_settings(0.1)
@given(
    method=st.sampled_from(["GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS", "PATCH", "TRACE", "BREW"]),
    path=st.lists(safe | st.sampled_from(["episodes", "health", "step", "..", "%00", "%ff"]), max_size=4).map("/".join),
    given_headers=headers,
    body=st.just(Body()) | raw_bodies,
)
def test_any_method_path_and_headers_are_answered_or_refused(
    server: Server, method: str, path: str, given_headers: dict[str, str], body: Body
) -> None:
    head = {"Host": "localhost", "Connection": "close", "Content-Length": str(len(body.content)), **given_headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    request = f"{method} /{path} HTTP/1.1\r\n{lines}\r\n".encode() + body.content
    answer = asyncio.run(server.exchange(request))
    if answer:
        assert int(answer.split()[1]) < 500, answer[:500]
    still_serves(server)


heads = st.sampled_from([b"", b"POST /episodes HTTP/1.1\r\nHost: a\r\n", b"GET /health HTTP/1.0\r\n"])


@fuzz_settings(0.1)
@given(st.tuples(heads, st.binary(max_size=200)).map(b"".join))
def test_bytes_that_are_no_request_neither_hang_nor_break_the_server(server: Server, data: bytes) -> None:
    answer = asyncio.run(server.exchange(data))
    if answer.startswith(b"HTTP"):
        assert int(answer.split()[1]) < 500, answer[:500]
    still_serves(server)
