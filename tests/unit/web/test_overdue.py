"""A client that sends half of a request and waits loses its connection; slow answers and busy clients keep theirs."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from agent_r1.web import listen, overdue, running_server

SECONDS = 1.0
HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


async def slow_hello(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application that takes its time when the path says so."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    if scope["path"] == "/slow":
        await asyncio.sleep(2.5 * SECONDS)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


class Client:
    """A connection whose bytes are written by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, url: str) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2])))

    async def ask(self, text: bytes = HEAD + b"\r\n") -> bytes:
        """Send a whole request; the end of its answer."""
        self._writer.write(text)
        return (await self._reader.readuntil(b"hello"))[-5:]

    async def seconds_until_closed(self, text: bytes) -> float:
        """Send a part of a request, then wait until the server closes the connection."""
        self._writer.write(text)
        started = time.monotonic()
        assert await asyncio.wait_for(self._reader.read(), timeout=20 * SECONDS) == b""
        seconds = time.monotonic() - started
        await self.close()
        return seconds

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


@pytest.fixture(autouse=True)
def short_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overdue, "HEAD_SECONDS", SECONDS)


def test_half_a_request_closes_its_connection_also_after_a_whole_one() -> None:
    async def run() -> None:
        async with running_server(slow_hello, listen("127.0.0.1", 0)) as url:
            for before in (0, 2):
                client = await Client.connect(url)
                for _ in range(before):
                    assert await client.ask() == b"hello"
                assert await client.seconds_until_closed(HEAD + b"X-More: ") >= SECONDS - 0.6
            silent = await Client.connect(url)
            assert await silent.seconds_until_closed(b"") >= SECONDS - 0.6

    asyncio.run(run())


def test_slow_answers_and_a_client_that_keeps_asking_are_not_closed() -> None:
    async def run() -> None:
        async with running_server(slow_hello, listen("127.0.0.1", 0)) as url:
            slow, busy = await Client.connect(url), await Client.connect(url)
            answer = asyncio.create_task(slow.ask(HEAD.replace(b"/ ", b"/slow ", 1) + b"\r\n"))
            while not answer.done():
                assert await busy.ask() == b"hello"
                await asyncio.sleep(0.05)
            assert await answer == b"hello"
            await slow.close()
            await busy.close()

    asyncio.run(run())
