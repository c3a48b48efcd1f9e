"""Calls to a server: what one costs beside hundreds of others, and bodies that are large."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="the engine needs the extra 'servers'")

from agent_r1.engines.http.client import LARGE_BODY, ServerClient, ServerError, make_http
from agent_r1.engines.http.images import ServerPrompt
from agent_r1.engines.http.sglang import SglangAdapter
from agent_r1.engines.http.vllm import VllmAdapter
from agent_r1.types import SamplingParams

Handler = Callable[[bytes], Awaitable[bytes]]


async def with_server(
    handler: Handler, use: Callable[[ServerClient], Awaitable[None]], *, content_type: str = "application/json"
) -> None:
    """Call a server that answers each body with what `handler` makes of it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                answer = await handler(await reader.readexactly(length))
                header = f"Content-Type: {content_type}\r\nContent-Length: {len(answer)}\r\n\r\n"
                writer.write(b"HTTP/1.1 200 OK\r\n" + header.encode() + answer)
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


@pytest.mark.parametrize(
    ("encoding", "content_type"),
    [("utf-16", "application/json"), ("latin-1", "application/json; charset=iso-8859-1")],
)
def test_an_answer_is_decoded_as_the_server_declares(encoding: str, content_type: str) -> None:
    async def handler(body: bytes) -> bytes:
        return '{"text": "café"}'.encode(encoding)

    async def use(client: ServerClient) -> None:
        assert await client.call("POST", "/x", body={}, seconds=60) == {"text": "café"}

    asyncio.run(with_server(handler, use, content_type=content_type))


@pytest.mark.parametrize(
    ("content_type", "told"),
    [("application/json", "is not in utf-8"), ("application/json; charset=klingon", "the charset 'klingon'")],
)
def test_an_answer_that_cannot_be_decoded_is_an_error_of_that_server(content_type: str, told: str) -> None:
    async def handler(body: bytes) -> bytes:
        return b'{"text": "caf\xe9"}'

    async def use(client: ServerClient) -> None:
        with pytest.raises(ServerError, match=rf"^POST http://127.*/x: .*{told}.*; have the server answer in UTF-8"):
            await client.call("POST", "/x", body={}, seconds=60)

    asyncio.run(with_server(handler, use, content_type=content_type))


def vllm_choice(**fields: Any) -> bytes:
    entry = {"token_id": 7, "logprob": -1.0}
    choice = {"token_ids": [7], "logprobs": {"content": [entry]}, "finish_reason": "stop", **fields}
    return json.dumps({"choices": [choice]}).encode()


def sglang_answer(ids: Any = (7,), **meta: Any) -> bytes:
    full = {"output_token_logprobs": [[-1.0, 7, None]], "finish_reason": {"type": "stop"}, **meta}
    return json.dumps({"output_ids": ids, "meta_info": full}).encode()


DEEP = b"[" * 100_000
INFINITE_SPAN = [{"version": "a", "start": float("inf"), "end": 1}]


@pytest.mark.parametrize(
    ("adapter", "answer"),
    [
        (VllmAdapter, DEEP),
        (VllmAdapter, vllm_choice(logprobs=[1])),
        (VllmAdapter, vllm_choice(logprobs={"content": 3})),
        (VllmAdapter, vllm_choice(logprobs={"content": [None]})),
        (VllmAdapter, vllm_choice(logprobs={"content": [{"token": "token_id:" + "9" * 5000}]})),
        (VllmAdapter, vllm_choice(token_ids=3)),
        (VllmAdapter, vllm_choice(weight_versions=INFINITE_SPAN)),
        (SglangAdapter, DEEP),
        (SglangAdapter, sglang_answer(ids=3)),
        (SglangAdapter, sglang_answer(output_token_logprobs=3)),
        (SglangAdapter, sglang_answer(weight_versions=INFINITE_SPAN)),
    ],
)
def test_an_answer_of_any_form_is_read_or_a_server_error(
    adapter: type[VllmAdapter] | type[SglangAdapter], answer: bytes
) -> None:
    async def handler(body: bytes) -> bytes:
        return answer

    async def use(client: ServerClient) -> None:
        prompt, sampling = ServerPrompt.of_text([1]), SamplingParams(max_tokens=4)
        with pytest.raises(ServerError, match=r"/generate: "):
            await adapter(client).generate(prompt, sampling, request_id="a", seconds=10)

    asyncio.run(with_server(handler, use))
