"""Who is served, how much, and what happens to requests whose client leaves or whose server stops."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_r1.errors import ConfigError
from agent_r1.serving import ServingLimits
from agent_r1.web import make_access
from tests.helpers.served_model import Served, served, tiny_agent

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 400}


def post(running: Served, body: Any = BODY, path: str = "/v1/chat/completions", **options: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(running.url + path, content=content, timeout=30, **options)


def error_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["message"]


@contextmanager
def paused(running: Served) -> Iterator[None]:
    """The engine computes nothing inside."""
    pause: AbstractAsyncContextManager[None] = running.engine.paused()
    running.run(pause.__aenter__())
    try:
        yield
    finally:
        running.run(pause.__aexit__(None, None, None))


def open_socket(running: Served, body: dict[str, Any]) -> socket.socket:
    """A connection that has sent its request."""
    url = httpx.URL(running.url)
    connection = socket.create_connection((url.host, url.port), timeout=30)
    content = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


# Who may ask


@pytest.mark.whole
def test_without_the_key_nothing_is_served(model_folder: Path) -> None:
    with served(tiny_agent(model_folder), access=make_access("127.0.0.1", key="secret")) as running:
        for path in ("/v1/models", "/health", "/metrics", "/v1/chat/completions", "/nope"):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
                status, message = error_of(httpx.get(running.url + path, headers=headers))
                assert (status, "needs its key" in message) == (401, True)
        right = httpx.get(running.url + "/v1/models", headers={"Authorization": "Bearer secret"})
        assert right.json()["data"][0]["id"] == "tiny"


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "http://localhost"}], ids=str
)
def test_other_host_names_and_web_pages_are_refused(tiny: Served, headers: dict[str, str]) -> None:
    for response in (post(tiny, headers=headers), httpx.get(f"{tiny.url}/v1/models", headers=headers)):
        assert response.status_code == 403
        assert response.json()["error"]["type"] == "permission_error"


@pytest.mark.parametrize(
    "path",
    ["/../etc/passwd", "/v1/models/..%2f..%2fetc%2fpasswd", "/v1/models/../../config.yaml", "//etc/passwd", "/v1"],
)
def test_no_path_leads_to_a_file(tiny: Served, path: str) -> None:
    url = httpx.URL(tiny.url)
    with socket.create_connection((url.host, url.port), timeout=10) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b" 404 " in answer.splitlines()[0]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "not_found"


def test_other_methods_are_refused(tiny: Served) -> None:
    assert error_of(httpx.get(f"{tiny.url}/v1/chat/completions"))[0] == 405
    assert error_of(httpx.request("DELETE", f"{tiny.url}/v1/models"))[0] == 405


def test_an_unknown_path_names_those_that_are_served(tiny: Served) -> None:
    message = httpx.post(f"{tiny.url}/v1/responses", json={}).json()["error"]["message"]
    assert "set_default_openai_api('chat_completions')" in message
    assert "this server has POST /v1/chat/completions, POST /v1/completions, POST /v1/agent, GET /v1/models" in message


# How much


@pytest.mark.whole
def test_limits_are_told(model_folder: Path) -> None:
    with served(tiny_agent(model_folder), max_tokens=5, max_prompt_tokens=50, body_mb=0.01) as running:
        assert "at most 5 per completion" in error_of(post(running))[1]
        assert post(running, {**BODY, "max_tokens": 5}).json()["usage"]["completion_tokens"] <= 5
        long = [{"role": "user", "content": "word " * 200}]
        status, message = error_of(post(running, {**BODY, "messages": long, "max_tokens": 5}))
        assert (status, "at most 50 fit" in message) == (400, True)
        status, message = error_of(post(running, b" " * 20_000))
        assert (status, "--body-mb" in message) == (413, True)


def test_limits_without_a_meaning_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_running=0\n.*request_seconds=nan"):
        ServingLimits(max_running=0, request_seconds=float("nan"))


@pytest.mark.whole
def test_a_full_server_says_429_and_a_free_slot_serves_again(model_folder: Path) -> None:
    with served(tiny_agent(model_folder), max_running=1, max_waiting=1) as running:
        slots = running.server.slots
        with paused(running):
            others = [open_socket(running, {**BODY, "max_tokens": 2}) for _ in range(2)]
            running.wait_until(lambda: slots.num_taken == 2)
            response = post(running)
            assert error_of(response)[0] == 429
            assert "busy with 2 completions" in error_of(response)[1]
            assert response.headers["retry-after"] == "1"
            assert httpx.get(f"{running.url}/health").json()["waiting"] == 1
        for other in others:
            assert b" 200 " in other.recv(100)
            other.close()
        running.wait_until(lambda: slots.num_taken == 0)
        assert post(running, {**BODY, "max_tokens": 2}).status_code == 200
        assert error_of(post(running, {**BODY, "n": 3}))[0] == 400


@pytest.mark.whole
def test_a_request_beyond_its_deadline_is_504_and_frees_its_slot(model_folder: Path) -> None:
    with served(tiny_agent(model_folder), request_seconds=0.3) as running, paused(running):
        status, message = error_of(post(running))
        assert (status, "not answered in 0.3 s" in message) == (504, True)
        streamed = post(running, {**BODY, "stream": True})
        assert json.loads(streamed.text.removeprefix("data: "))["error"]["code"] == "deadline"
        running.wait_until(lambda: running.server.slots.num_taken == 0)


# Clients that leave


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up_frees_its_slot(tiny: Served, stream: bool, n: int) -> None:
    server, engine = tiny.server, tiny.engine
    before = server.metrics.requests["/v1/chat/completions", 499]
    connection = open_socket(tiny, {**BODY, "stream": stream, "n": n, "seed": 1})
    if stream:
        assert b"200 OK" in connection.recv(4096)
    tiny.wait_until(lambda: len(engine._scheduler.running) == n)
    with paused(tiny):
        connection.close()
        tiny.wait_until(lambda: server.slots.num_taken == 0)
        if stream:
            assert not engine._scheduler.has_work, "its blocks are free before the next step"
    tiny.wait_until(lambda: not engine._scheduler.has_work)
    tiny.wait_until(lambda: server.metrics.requests["/v1/chat/completions", 499] == before + 1)
    assert post(tiny, {**BODY, "max_tokens": 2}).status_code == 200


def test_clients_that_leave_in_any_state_leave_nothing_behind(tiny: Served) -> None:
    for number in range(12):
        connection = open_socket(tiny, {**BODY, "stream": number % 2 == 0, "n": 1 + number % 3})
        if number % 4 == 0:
            connection.recv(100)
        connection.close()
    tiny.wait_until(lambda: tiny.server.slots.num_taken == 0)
    tiny.wait_until(lambda: not tiny.engine._scheduler.has_work)
    assert not tiny.engine._futures._streams


# The end


@pytest.mark.whole
def test_shutdown_finishes_running_requests(model_folder: Path) -> None:
    answers: list[httpx.Response] = []
    with served(tiny_agent(model_folder), shutdown_seconds=20) as running:
        threads = [
            threading.Thread(target=lambda body=body: answers.append(post(running, body)))
            for body in ({**BODY, "max_tokens": 60, "seed": 1}, {**BODY, "max_tokens": 60, "seed": 1, "stream": True})
        ]
        for thread in threads:
            thread.start()
        running.wait_until(lambda: running.server.slots.num_taken == 2)
    for thread in threads:
        thread.join(20)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert any(answer.text.endswith("data: [DONE]\n\n") for answer in answers)


def test_shutdown_ends_within_its_bound(model_folder: Path) -> None:
    with served(tiny_agent(model_folder), shutdown_seconds=0) as running:
        pause = running.engine.paused()
        running.run(pause.__aenter__())
        connection = open_socket(running, {**BODY, "stream": True})
        running.wait_until(lambda: running.server.slots.num_taken == 1)
    assert running.server.slots.num_taken == 0
    connection.close()


# What the server tells


def test_an_error_of_the_server_itself_is_counted_and_told_by_its_type(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*args: Any, **named: Any) -> None:
        raise ZeroDivisionError("a secret of the server")

    with served(tiny_agent(model_folder)) as running:
        monkeypatch.setattr(running.server.model, "choice", broken)
        answer = post(running, BODY)
        assert answer.status_code == 500
        assert answer.json()["error"]["message"] == "the server failed with a ZeroDivisionError"
        assert dict(running.server.metrics.requests) == {("/v1/chat/completions", 500): 1}


@pytest.mark.whole
def test_metrics_count_requests_and_tokens(model_folder: Path) -> None:
    with served(tiny_agent(model_folder)) as running:
        used = post(running, {**BODY, "max_tokens": 5}).json()["usage"]
        post(running, {**BODY, "max_tokens": 5, "stream": True})
        post(running, b"{")
        lines = dict(
            line.rsplit(" ", 1)
            for line in httpx.get(f"{running.url}/metrics").text.splitlines()
            if not line.startswith("#")
        )
    path = 'path="/v1/chat/completions"'
    assert lines[f'agent_r1_requests_total{{{path},status="200"}}'] == "2"
    assert lines[f'agent_r1_requests_total{{{path},status="400"}}'] == "1"
    assert lines["agent_r1_prompt_tokens_total"] == str(2 * used["prompt_tokens"])
    assert int(lines["agent_r1_sampled_tokens_total"]) == int(lines["agent_r1_engine_generated_tokens"])
    assert lines["agent_r1_first_token_seconds_count"] == "1"
    assert lines["agent_r1_duration_seconds_count"] == "3"
