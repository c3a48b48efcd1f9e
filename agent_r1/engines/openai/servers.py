"""Requests to one or several OpenAI-compatible servers: bounded, retried with back-off, every failure one clear line.

A request goes to the server with the fewest open ones. One that fails for a passing reason (429, 5xx, no answer in
time, a connection lost, an answer that is no JSON) is sent again after a pause, to another server where there is one.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_r1.errors import EngineError, EngineRequestError, MissingExtraError
from agent_r1.web import (
    ACCEPTED,
    AnswerEncodingError,
    AnswerTooLargeError,
    UnknownCharsetError,
    decode_answer,
    read_answer,
    read_lines,
    redirection,
    unpacked,
)

if TYPE_CHECKING:
    import httpx

_PASSING = frozenset({408, 409, 425, 429, *range(500, 600)})
"""Statuses after which the same request may succeed."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 60.0
"""Seconds: the first pause doubles with each attempt; a server may ask for another one (`Retry-After`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """How servers are called."""

    key: str | None = field(default=None, repr=False)
    """Sent as a bearer token."""
    timeout: float = 300.0
    """Seconds without any byte from the server after which a request fails; also of a whole answer from its first byte,
    where it is not streamed."""
    retries: int = 0
    """How often a request is sent again."""
    concurrency: int = 64
    """Maximum open requests per server."""


class PassingError(EngineError):
    """A failure that another attempt may not have."""

    def __init__(self, message: str, *, pause: float | None = None) -> None:
        super().__init__(message)
        self.pause = pause
        """Seconds after which the server wants to be asked again."""


@dataclass(kw_only=True)
class _Server:
    url: str
    slots: asyncio.Semaphore
    num_open: int = 0
    rests_until: float = 0.0
    """After a failure, other servers are preferred until then."""
    asked_pause_until: float = 0.0
    """The end of a pause that the server asked for: no request is sent before then."""

    def rest(self, pause: float, *, was_asked: bool) -> None:
        self.rests_until = time.monotonic() + pause
        if was_asked:
            self.asked_pause_until = max(self.asked_pause_until, self.rests_until)


class Servers:
    """The servers of an engine.

    Args:
        urls: Their base addresses, with or without `/v1`.
        settings: How they are called.
    """

    def __init__(self, urls: Sequence[str], settings: ServerSettings) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingExtraError("httpx", "servers", "an OpenAI-compatible server") from error
        headers = {"Accept-Encoding": ACCEPTED}
        if settings.key is not None:
            headers["Authorization"] = f"Bearer {settings.key}"
        self._servers = [_Server(url=base_url(url), slots=asyncio.Semaphore(settings.concurrency)) for url in urls]
        self._settings = settings
        self._errors = httpx.HTTPError, httpx.InvalidURL, httpx.StreamError
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(settings.timeout, connect=10.0),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),  # the slots bound them
        )

    @property
    def urls(self) -> list[str]:
        """The base addresses of the servers."""
        return [server.url for server in self._servers]

    async def get(self, url: str, path: str) -> Mapping[str, Any]:
        """The JSON object that one server answers to GET; not retried."""
        return await self._ask_once("GET", url, path)

    async def post(self, path: str, request: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
        """The JSON object that a server answers, and the number of attempts that failed before."""
        for attempt in range(self._settings.retries + 1):
            async with self._chosen() as server:
                try:
                    return await self._ask_once("POST", server.url, path, request), attempt
                except PassingError as error:
                    pause = self._pause_after(error, attempt, server)
            await asyncio.sleep(pause)
        raise AssertionError  # the last attempt returns or raises

    def _pause_after(self, error: PassingError, attempt: int, server: _Server) -> float:
        """Seconds before the next attempt: none while another server is well. Raises after the last attempt."""
        pause = _pause(attempt, error.pause)
        server.rest(pause, was_asked=error.pause is not None)
        if attempt == self._settings.retries:
            raise EngineError(f"{error} (tried {attempt + 1} times)" if attempt else str(error)) from error
        now = time.monotonic()
        return pause if all(other.rests_until > now for other in self._servers) else 0.0

    async def _ask_once(
        self, method: str, url: str, path: str, request: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        try:
            async with self._client.stream(method, url + path, json=request) as response:
                async with asyncio.timeout(self._settings.timeout):
                    body = await _body(response)
        except TimeoutError:
            seconds = f"{self._settings.timeout:g} s (engine.servers.timeout)"
            raise PassingError(f"{url + path} began to answer and had not ended after {seconds}") from None
        except AnswerEncodingError as error:
            raise _unreadable(url + path, error) from error
        except (*self._errors, AnswerTooLargeError) as error:
            raise PassingError(_unreachable(url, error)) from error
        return _answer(url + path, response.status_code, body, response.headers)

    async def stream(self, path: str, request: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        """The JSON objects of a stream of server-sent events. A failure is retried until the first one has come."""
        for attempt in range(self._settings.retries + 1):
            has_begun = False
            async with self._chosen() as server:
                try:
                    async for chunk in self._stream_once(server.url, path, request):
                        has_begun = True
                        yield chunk
                    return
                except PassingError as error:
                    if has_begun:
                        raise
                    pause = self._pause_after(error, attempt, server)
            await asyncio.sleep(pause)

    async def _stream_once(self, url: str, path: str, request: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        try:
            async with self._client.stream("POST", url + path, json=request) as response:
                if response.status_code != 200:
                    _answer(url + path, response.status_code, await _body(response), response.headers)
                lines = read_lines(_chunks(response), content_type=response.headers.get("content-type"))
                async for line in lines:
                    data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
                    if data == "[DONE]":
                        return
                    if data:
                        yield _chunk(data, url)
        except AnswerEncodingError as error:
            raise _unreadable(url + path, error) from error
        except (*self._errors, AnswerTooLargeError) as error:
            raise PassingError(_unreachable(url, error)) from error

    @asynccontextmanager
    async def _chosen(self) -> AsyncIterator[_Server]:
        """A slot at the server with the fewest open requests; servers that just failed come last."""
        now = time.monotonic()
        server = min(self._servers, key=lambda other: (other.rests_until > now, other.num_open))
        server.num_open += 1
        try:
            async with server.slots:
                await asyncio.sleep(max(0.0, server.asked_pause_until - time.monotonic()))
                yield server
        finally:
            server.num_open -= 1

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def base_url(url: str) -> str:
    """The address under which `/chat/completions` is.

    >>> base_url("http://localhost:8000/"), base_url("https://api.example.com/v1")
    ('http://localhost:8000/v1', 'https://api.example.com/v1')
    """
    if not url.startswith(("http://", "https://")):
        raise EngineError(f"the server's address must begin with http:// or https://, found {url!r:.80}")
    base = url.rstrip("/")
    return base if base.endswith("/v1") else f"{base}/v1"


def _pause(attempt: int, requested: float | None) -> float:
    """Seconds before the next attempt: what the server asked for, else a random time up to a bound that doubles."""
    if requested is not None:
        return min(requested, _LONGEST_PAUSE)
    bound: float = min(_FIRST_PAUSE * 2**attempt, _LONGEST_PAUSE)
    return random.uniform(bound / 2, bound)


def _chunks(response: httpx.Response) -> AsyncIterator[bytes]:
    return unpacked(response.aiter_raw(), response.headers.get("content-encoding"))


async def _body(response: httpx.Response) -> str:
    """The text of an answer. That of a refusal only explains it and need not be in the charset it declares."""
    content = await read_answer(_chunks(response))
    return decode_answer(content, response.headers.get("content-type"), strict=response.status_code == 200)


def _unreadable(address: str, error: AnswerEncodingError) -> EngineError:
    """Bytes may have been damaged on their way; a server that declares an unknown charset will do so again."""
    kind = EngineError if isinstance(error, UnknownCharsetError) else PassingError
    return kind(f"{address}: {error}")


def _answer(address: str, status: int, body: str, headers: Mapping[str, str]) -> Mapping[str, Any]:
    """The JSON object of an answer. Raises `PassingError` or `EngineRequestError` when it is none."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if status == 200:
        if isinstance(answer, dict):
            return answer
        raise PassingError(
            f"{address} did not answer with a JSON object but with {body!r:.200}; is this an OpenAI-compatible server?"
        )
    elsewhere = redirection(status, headers)
    if elsewhere is not None:
        raise EngineRequestError(f"{address} does not answer: {elsewhere}")
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    code = error.get("code") if isinstance(error, dict) else None
    reason = (error.get("message", error) if isinstance(error, dict) else error) or body.strip()
    hint = _HINTS.get(status, "")
    message = f"{address} refused the request with {status}: {str(reason)[:500]}{hint}"
    if status in _PASSING and code != "insufficient_quota":
        raise PassingError(message, pause=_seconds(headers.get("retry-after")))
    raise EngineRequestError(message)


_HINTS = {
    401: "; give its key (engine.servers.key_env=NAME, chat: --key-env NAME)",
    404: "; is the model's name right?",
}


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:  # a date, which servers of this API do not send
        return None


def _chunk(data: str, url: str) -> Mapping[str, Any]:
    try:
        chunk = json.loads(data)
    except (ValueError, RecursionError):
        chunk = None
    if not isinstance(chunk, dict):
        raise PassingError(f"{url} sent an event that is not a JSON object: {data!r:.200}")
    if chunk.get("error"):
        raise PassingError(f"{url} reports an error: {json.dumps(chunk['error'])[:500]}")
    return chunk


def _unreachable(url: str, error: Exception) -> str:
    reason = str(error) or type(error).__name__
    return f"the server {url} cannot be reached or stopped answering ({reason}); is it running at this address?"
