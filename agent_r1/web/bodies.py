"""Reading a request: its body within limits of size and time, its JSON, and whether the client is still there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from agent_r1.codec import is_deeper_than, read_json
from agent_r1.web.refusals import RefusedError

if TYPE_CHECKING:
    from starlette.requests import Request

CLIENT_DISCONNECTED = 499
"""The status of a response that no client receives."""

MAX_DEPTH = 64
"""Nesting of a JSON request; no API needs as much, and code that walks a request must not run out of stack."""

_SEEN_SECONDS = 0.01
"""How long the server may take to see that a client has left."""

_T = TypeVar("_T")


async def read_body(
    request: Request, *, max_bytes: int, seconds: float, limit_name: str = "the limit of this server"
) -> bytes:
    """The body of a request; refused when it is too large, whatever its header says, or too slow."""
    limit = f"{max_bytes / (1 << 20):g} MB"
    too_large = RefusedError(413, "too_large", f"the request is larger than {limit} ({limit_name})")
    declared = request.headers.get("content-length", "0")
    if not declared.isascii() or not declared.isdigit():
        raise RefusedError(400, "bad_request", "Content-Length is not a number")
    if len(declared) > 18 or int(declared) > max_bytes:
        raise too_large
    content = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                content += chunk
                if len(content) > max_bytes:
                    raise too_large
    except TimeoutError:
        raise RefusedError(408, "slow_request", f"the request did not arrive in {seconds:g} s") from None
    return bytes(content)


def read_object(content: bytes) -> dict[str, Any]:
    """The JSON object of a body, parsed strictly; anything else is refused with status 400.

    >>> read_object(b'{"n": 1}')
    {'n': 1}
    """
    try:
        value = read_json(content)
    except ValueError as error:
        raise RefusedError(400, "bad_request", f"the body cannot be read: {str(error)[:1000]}") from None
    if not isinstance(value, dict):
        raise RefusedError(400, "bad_request", f"the body must be a JSON object, found {type(value).__name__}")
    if content.count(b"{") + content.count(b"[") > MAX_DEPTH and is_deeper_than(value, MAX_DEPTH):
        raise RefusedError(400, "bad_request", f"the body is nested more than {MAX_DEPTH} levels deep")
    return value


async def has_disconnected(request: Request) -> bool:
    """Whether the client is gone, also when it left a moment ago and the server has not seen it yet.

    The body of the request must have been read.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(_SEEN_SECONDS):
            await request.receive()  # after the body, the next message is the disconnect
    return await request.is_disconnected()


async def while_connected(request: Request, call: Awaitable[_T]) -> _T:
    """The result of a call; cancels it and raises `ClientDisconnect` when the client disconnects first.

    The body of the request must have been read.
    """
    from starlette.requests import ClientDisconnect

    work = asyncio.ensure_future(call)
    disconnect = asyncio.ensure_future(request.receive())  # after the body, the next message is the disconnect
    try:
        await asyncio.wait({work, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        raise ClientDisconnect
    finally:
        work.cancel()
        disconnect.cancel()
        await asyncio.gather(work, disconnect, return_exceptions=True)
