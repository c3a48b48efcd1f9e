"""Calls to a server: what one costs beside hundreds of others, and bodies that are large."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

import pytest

pytest.importorskip("aiohttp", reason="the engine needs the extra 'servers'")

from agent_r1.engines.http.client import LARGE_BODY, ServerClient, make_http

Handler = Callable[[bytes], Awaitable[bytes]]


async def with_server(handler: Handler, use: Callable[[ServerClient], Awaitable[None]]) -> None:
    """Call a server that answers each body with what `handler` makes of it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                answer = await handler(await reader.readexactly(length))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    async with server, make_http() as http:
        await use(ServerClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", http))


def test_a_call_costs_the_same_beside_hundreds_of_open_ones() -> None:
    costs: dict[int, float] = {}

    async def handler(body: bytes) -> bytes:
        await asyncio.sleep(0.02)
        return b"{}"

    async def measure(client: ServerClient) -> None:
        for num_open in (8, 400):
            slots = asyncio.Semaphore(num_open)

            async def call(slots: asyncio.Semaphore = slots) -> None:
                async with slots:
                    await client.call("POST", "/x", body={"ids": [1]}, seconds=60)

            for count in (num_open, 200):  # the first opens the connections
                begin = time.process_time()
                await asyncio.gather(*(call() for _ in range(count)))
                costs[num_open] = (time.process_time() - begin) / count

    asyncio.run(with_server(handler, measure))
    assert costs[400] < 3 * costs[8]


@pytest.mark.parametrize("size", [10, LARGE_BODY + 10])
def test_bodies_of_any_size_arrive_whole(size: int) -> None:
    async def handler(body: bytes) -> bytes:
        return json.dumps(len(json.loads(body)["text"])).encode()

    async def use(client: ServerClient) -> None:
        assert await client.call("POST", "/x", body={"text": "a" * size}, seconds=60) == size

    asyncio.run(with_server(handler, use))
