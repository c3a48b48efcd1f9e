"""A request whose head has no end is refused before it fills the memory; large bodies and many requests are not."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from agent_r1.web import listen, running_server
from agent_r1.web.heads import MAX_HEAD

pytest.importorskip("httptools")

HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


async def size_of_body(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application that answers with the number of bytes in the body."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    content = f"<{size}>".encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(content))]})
    await send({"type": "http.response.body", "body": content})


async def flood(url: str, begun: bytes, more: bytes, *, most: int) -> tuple[int, bytes]:
    """Send `more` again and again; how many bytes the server took, at most, and what it answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(begun)
    sent, answer = 0, b""
    with suppress(ConnectionError):
        while sent < most and not reader.at_eof():
            writer.write(more)
            await writer.drain()
            sent += len(more)
            await asyncio.sleep(0)
    with suppress(ConnectionError, TimeoutError):
        answer = await asyncio.wait_for(reader.read(), timeout=0.5)
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    return sent, answer


@pytest.mark.parametrize(
    ("begun", "more"),
    [
        (HEAD, b"X: y\r\n" * 2000),
        (HEAD + b"X: ", b"y" * 20_000),
        (b"GET /", b"y" * 20_000),
        (CHUNKED + b"1\r\nx\r\n0\r\n", b"X: y\r\n" * 2000),
        (CHUNKED + b"1;", b"y" * 20_000),
    ],
    ids=["headers", "header", "path", "trailers", "chunk extension"],
)
def test_a_head_without_end_closes_its_connection(begun: bytes, more: bytes) -> None:
    async def run() -> None:
        async with running_server(size_of_body, listen("127.0.0.1", 0)) as url:
            most = 32 << 20
            sent, answer = await flood(url, begun, more, most=most)
            assert sent < most
            assert not answer or answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 "))

    asyncio.run(run())


def test_large_bodies_and_many_requests_at_once_are_served() -> None:
    async def run() -> None:
        async with running_server(size_of_body, listen("127.0.0.1", 0)) as url:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            size = 20 * MAX_HEAD
            writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
            assert (await reader.readuntil(b">")).endswith(b"<%d>" % size)
            writer.write(CHUNKED + b"1\r\nx\r\n" * MAX_HEAD + b"0\r\n\r\n")
            assert (await reader.readuntil(b">")).endswith(b"<%d>" % MAX_HEAD)
            writer.write((HEAD + b"X: " + b"y" * 1000 + b"\r\n\r\n") * 200)
            for _ in range(200):
                assert (await reader.readuntil(b">")).endswith(b"<0>")
            writer.close()
            await writer.wait_closed()

    asyncio.run(run())
