"""What all servers share: origins, strict JSON, addresses, and a server inside a running event loop."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import httpx
import pytest

from agent_r1.errors import ConfigError
from agent_r1.web import Access, AccessControl, RefusedError, listen, make_access, read_object, running_server


async def hello(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application that greets."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def refusal_of(access: Access, **headers: str) -> int | None:
    try:
        access.check([(name.lower().encode(), value.encode()) for name, value in headers.items()])
    except RefusedError as refused:
        return refused.status
    return None


def test_the_servers_own_pages_are_served_where_it_has_any() -> None:
    with_pages, without = make_access("127.0.0.1", key=None, own_pages=True), make_access("127.0.0.1", key=None)
    own = {"Host": "127.0.0.1:8000", "Origin": "http://127.0.0.1:8000"}
    assert refusal_of(with_pages, **own) is None
    assert refusal_of(without, **own) == 403
    for origin in ("http://evil.example", "null", "http://127.0.0.1:8001", "https://127.0.0.1:8000", ""):
        assert refusal_of(with_pages, Host="127.0.0.1:8000", Origin=origin) == 403
    assert refusal_of(with_pages, Host="evil.example", Origin="http://evil.example") == 403, "a rebound name"


def test_a_key_is_compared_whole_and_made_where_others_can_listen() -> None:
    access = make_access("127.0.0.1", key="secret")
    assert refusal_of(access, Host="localhost") == 401
    assert refusal_of(access, Host="localhost", Authorization="Bearer secre") == 401
    assert refusal_of(access, Host="localhost", Authorization="Basic secret") == 401
    assert refusal_of(access, Host="localhost", Authorization="bearer secret") is None
    assert make_access("0.0.0.0", key=None).token
    assert make_access("127.0.0.1", key=None).token is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON"),
        (b"[1]", "must be a JSON object, found list"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": 1, "a": 2}', "stands twice"),
        (b"\xff", "not UTF-8"),
        (b'{"a": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"[" * 64 + b"]" * 64 + b"}", "more than 64 levels"),
        (b'{"a": ' + b"9" * 5000 + b"}", "thousands of digits"),
    ],
)
def test_a_body_that_is_no_plain_json_object_is_refused_with_its_reason(body: bytes, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason) as caught:
        read_object(body)
    assert caught.value.status == 400


def test_a_wide_body_is_not_a_deep_one() -> None:
    rows = [[index] for index in range(1000)]
    assert read_object(json.dumps({"a": rows}).encode()) == {"a": rows}


def test_a_taken_port_is_a_clear_error() -> None:
    with listen("127.0.0.1", 0) as listener, pytest.raises(ConfigError, match="choose another --port"):
        listen("127.0.0.1", listener.getsockname()[1])


def test_a_server_runs_on_the_event_loop_and_refuses_in_the_shape_of_its_api() -> None:
    async def run() -> None:
        app = AccessControl(hello, Access(), body=lambda refused: {"detail": refused.message})
        async with running_server(app, listen("127.0.0.1", 0)) as url, httpx.AsyncClient() as client:
            assert (await client.get(url)).text == "hello"
            refused = await client.get(url, headers={"Origin": "http://evil.example"})
            assert refused.status_code == 403
            assert "web pages" in refused.json()["detail"]
        with pytest.raises(httpx.ConnectError):
            await httpx.AsyncClient().get(url)

    asyncio.run(run())


def test_the_package_is_imported_without_a_web_framework() -> None:
    code = "import sys, agent_r1.web; print([m for m in ('uvicorn', 'starlette', 'fastapi') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_an_address_that_is_not_here_asks_for_another_host() -> None:
    with pytest.raises(ConfigError, match="choose another --host"):
        listen("192.0.2.1", 0)
