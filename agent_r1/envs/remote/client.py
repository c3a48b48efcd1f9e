"""`RemoteEnv`: the client of an environment server (`agent-r1 env serve`), used like a local environment.

    env: {name: remote, url: "http://10.0.0.7:8700", args: {size: 4}}

A server that other machines can reach needs a token: set the variable AGENT_R1_ENV_TOKEN, or `token`, which is saved
with the configuration of a run.

A request whose response is lost is sent again with the same request id, and the server repeats its response. An
episode that the server no longer knows raises `EpisodeLostError`: the rollout is retried with a new one.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from agent_r1.codec import WireError, records
from agent_r1.constraints import CountOrZero, NotNegative, Seconds
from agent_r1.envs.base import AgentEnv
from agent_r1.errors import (
    ConfigError,
    EnvServerError,
    EpisodeError,
    EpisodeLostError,
    require_installed,
)
from agent_r1.registry import check_arguments
from agent_r1.types import Action, Observation, StepResult, StopReason, Task
from agent_r1.web import ACCEPTED, AnswerEncodingError, AnswerTooLargeError, read_answer, redirection, unpacked

if TYPE_CHECKING:
    import httpx

_TOKEN_VARIABLE = "AGENT_R1_ENV_TOKEN"
_MAX_PAUSE = 8.0
_CLOSE_SECONDS = 5.0


@AgentEnv.register("remote")
class RemoteEnv(AgentEnv):
    """One episode of the environment at `url`, made there with `args`.

    `connect_seconds` and `read_seconds` are the timeouts of one attempt. A lost connection is retried `retries` times,
    with pauses that double from `pause_seconds`. On a full server `reset` waits up to `wait_seconds` for a slot.
    `token` is the server's token, when it needs one; default: the variable AGENT_R1_ENV_TOKEN.
    """

    def __init__(
        self,
        url: str,
        args: Mapping[str, Any] | None = None,
        connect_seconds: Seconds = 5.0,
        read_seconds: Seconds = 60.0,
        retries: CountOrZero = 5,
        pause_seconds: NotNegative = 0.5,
        wait_seconds: NotNegative = 300.0,
        token: str | None = None,
    ) -> None:
        _check_url(url)
        numbers = {
            "connect_seconds": connect_seconds,
            "read_seconds": read_seconds,
            "retries": retries,
            "pause_seconds": pause_seconds,
            "wait_seconds": wait_seconds,
        }
        check_arguments(RemoteEnv, "env.", numbers, "environment 'remote'")
        require_installed("httpx", "httpx", "remote", "env.name=remote")
        self._url = url.rstrip("/")
        self._args = dict(args or {})
        self._headers = _headers(token or os.environ.get(_TOKEN_VARIABLE))
        self._timeouts = (connect_seconds, read_seconds)
        self._retries = retries
        self._pause_seconds = pause_seconds
        self._wait_seconds = wait_seconds
        self._server: _Connections | None = None
        self._client: httpx.AsyncClient | None = None
        self._episode_id = ""
        self._num_steps = 0
        self._num_retries = 0

    async def reset(self, task: Task) -> Observation:
        """Begin an episode on the server."""
        await self.close()
        self._server = _Connections.lease(self._url)
        self._client = self._server.take_client()
        self._num_steps = 0
        self._num_retries = 0
        await self._server.wait_until_healthy(self._check_health)
        self._episode_id = uuid.uuid4().hex
        body = {"request_id": self._episode_id, "task": records.task_to_json(task), "args": self._args}
        response = await self._request("POST", "/episodes", body, "reset")
        with self._wire_errors("reset"):
            return records.observation_from_json(response.get("observation"))

    async def step(self, action: Action) -> StepResult:
        """Take the next step of the episode."""
        if not self._episode_id:
            raise RuntimeError("step of a RemoteEnv before its reset, or after its close")
        number = self._num_steps + 1
        body = {"request_id": uuid.uuid4().hex, "step": number, "action": records.action_to_json(action)}
        response = await self._request("POST", f"/episodes/{self._episode_id}/step", body, f"step {number}")
        self._num_steps = number
        with self._wire_errors(f"step {number}"):
            return self._with_retries(records.result_from_json(response.get("result")))

    @contextmanager
    def _wire_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except WireError as error:
            raise EnvServerError(f"{what}: {self._url} sent a response that cannot be read: {error}") from error

    def _with_retries(self, result: StepResult) -> StepResult:
        """The result, with the number of retries since the last one in its metrics."""
        if not self._num_retries:
            return result
        metrics = {**result.info.get("metrics", {}), "episode/env_retries": float(self._num_retries)}
        self._num_retries = 0
        return replace(result, info={**result.info, "metrics": metrics})

    async def close(self) -> None:
        """End the episode on the server; a server that cannot be reached closes it after its idle time."""
        server, self._server = self._server, None
        client, self._client = self._client, None
        episode_id, self._episode_id = self._episode_id, ""
        if server is None or client is None:
            return
        try:
            if episode_id:
                path, timeout = f"/episodes/{episode_id}", server.timeout(_CLOSE_SECONDS, _CLOSE_SECONDS)
                with suppress(server.httpx.HTTPError, _WrongResponseError, TimeoutError):
                    async with asyncio.timeout(_CLOSE_SECONDS):
                        await self._attempt(client, timeout, "DELETE", path, None)
        finally:
            await server.release(client)

    async def _check_health(self) -> None:
        await self._request("GET", "/health", None, "health check")

    async def _request(self, method: str, path: str, body: records.Json | None, what: str) -> records.Json:
        """The response to one request, with retries."""
        server, client = self._server, self._client
        if server is None or client is None:
            raise RuntimeError(f"{what} of a RemoteEnv that is closed")
        clock = asyncio.get_running_loop().time
        content = None if body is None else records.dumps(body)
        full_until = clock() + self._wait_seconds
        num_lost = 0
        pause = self._pause_seconds
        while True:
            try:
                response, answer = await self._attempt(client, server.timeout(*self._timeouts), method, path, content)
                if response.status_code != 503:
                    return self._read(response, answer, body, what)
                problem = "it is full"
                pause = max(pause, _seconds(response.headers.get("Retry-After")))
                if clock() + pause > full_until:
                    raise EnvServerError(
                        f"{what}: the environment server at {self._url} had no slot for another episode in "
                        f"{self._wait_seconds:g} s; raise its --max-episodes or lower rollout.concurrency"
                    )
            except (server.httpx.TransportError, _WrongResponseError) as error:
                problem = f"{type(error).__name__}: {error}"
                num_lost += 1
                self._num_retries += 1
            if num_lost > self._retries:
                raise EnvServerError(
                    f"{what}: no answer from the environment server at {self._url} in {num_lost} attempts ({problem}). "
                    "Is it running? Start one with: agent-r1 env serve MODULE"
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)

    async def _attempt(
        self, client: httpx.AsyncClient, timeout: httpx.Timeout, method: str, path: str, content: bytes | None
    ) -> tuple[httpx.Response, bytes]:
        """The response and its body."""
        url, headers = self._url + path, self._headers
        seconds = (timeout.connect or 0.0) + 2 * (timeout.read or 0.0)  # httpx's own are between two bytes
        try:
            async with (
                asyncio.timeout(seconds),
                client.stream(method, url, content=content, headers=headers, timeout=timeout) as response,
            ):
                chunks = unpacked(response.aiter_raw(), response.headers.get("Content-Encoding"))
                return response, await read_answer(chunks)
        except TimeoutError:
            raise _WrongResponseError(f"the answer was not complete after {seconds:g} s") from None
        except (AnswerTooLargeError, AnswerEncodingError) as error:
            raise _WrongResponseError(str(error)) from error

    def _read(self, response: httpx.Response, answer: bytes, body: records.Json | None, what: str) -> records.Json:
        text = answer[:800].decode(errors="replace")[:200]
        elsewhere = redirection(response.status_code, response.headers)
        if elsewhere is not None:
            raise EnvServerError(f"{what}: {self._url} does not answer: {elsewhere} (env.url)")
        try:
            value = records.loads(answer)
        except ValueError as error:
            raise _WrongResponseError(f"HTTP {response.status_code} and no JSON object: {text!r}") from error
        if response.status_code == 200:
            for key in ("request_id", "step"):
                if body is not None and value.get(key) != body.get(key):
                    raise _WrongResponseError(f"it answered {key} {value.get(key)!r} where {body.get(key)!r} was asked")
            return value
        problem = value.get("error")
        if not isinstance(problem, dict):
            problem = {}
        kind, message = problem.get("kind"), problem.get("message", text)
        if response.status_code in (401, 403):
            raise EnvServerError(f"{what}: {self._url} refuses access (HTTP {response.status_code}): {message}")
        if kind == "unknown_episode":
            raise EpisodeLostError(f"{what}: {message}; the server was restarted, or the episode was idle for too long")
        if kind in ("env_error", "deadline"):
            raise EpisodeError(StopReason.ENV_ERROR, f"{what} on {self._url}", str(problem.get("traceback") or message))
        raise EnvServerError(f"{what}: {self._url} answered HTTP {response.status_code}: {message}")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"env.url={url} is not a URL ({error}); expected one like http://127.0.0.1:8700") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ConfigError(f"env.url={url} is not a URL; expected one like http://127.0.0.1:8700")


def _headers(token: str | None) -> dict[str, str]:
    headers = {"Content-Type": "application/json", "Accept-Encoding": ACCEPTED}
    if token:
        if not token.isascii() or not token.isprintable():
            raise ConfigError(f"env.token (or {_TOKEN_VARIABLE}) must be printable ASCII, as a header is")
        headers["Authorization"] = f"Bearer {token}"
    return headers


class _WrongResponseError(Exception):
    """A response that does not belong to the request."""


def _seconds(retry_after: str | None) -> float:
    try:
        return float(retry_after or 0)
    except ValueError:
        return 0.0


def _block_sniffio_import() -> None:
    """httpcore tries to import `sniffio` for every lock it makes. Where it is not installed, each import searches the
    whole path, which is half the cost of a request; after this it fails at once."""
    try:
        import_module("sniffio")
    except ImportError:
        sys.modules.setdefault("sniffio", None)  # type: ignore[arg-type]


class _Connections:
    """The connections to one server, shared by all episodes of one event loop and closed with the last of them.

    Each episode has its own connection, which a later episode reuses. In one pool shared by all, every request would
    look at every connection: with hundreds of episodes that is most of the cost of a step.
    """

    _open: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Connections]]] = WeakKeyDictionary()

    def __init__(self, url: str, by_url: dict[str, _Connections]) -> None:
        import httpx

        self.httpx = httpx
        _block_sniffio_import()
        # Reading the certificates is slow: once per server, and only for https.
        self._verify = httpx.create_ssl_context() if url.startswith("https://") else False
        self._idle: list[httpx.AsyncClient] = []
        self._url = url
        self._by_url = by_url
        self._num_users = 0
        self._health: asyncio.Task[None] | None = None

    @classmethod
    def lease(cls, url: str) -> _Connections:
        """The connections to the server at `url`; call `release` at the end."""
        servers = cls._open.setdefault(asyncio.get_running_loop(), {})
        server = servers.get(url) or servers.setdefault(url, cls(url, servers))
        server._num_users += 1
        return server

    def take_client(self) -> httpx.AsyncClient:
        """A connection for one episode: an idle one, or a new one."""
        if self._idle:
            return self._idle.pop()
        # Environment servers are in the local network: proxies from the environment variables are not used.
        return self.httpx.AsyncClient(verify=self._verify, trust_env=False)

    def timeout(self, connect: float, read: float) -> httpx.Timeout:
        """The timeouts of one attempt."""
        return self.httpx.Timeout(connect=connect, read=read, write=read, pool=None)

    async def release(self, client: httpx.AsyncClient) -> None:
        """Return a connection for reuse; close all after the last user."""
        self._num_users -= 1
        self._idle.append(client)
        if self._num_users == 0:
            self._by_url.pop(self._url, None)
            if self._health is not None:
                self._health.cancel()
            await asyncio.gather(*(idle.aclose() for idle in self._idle))

    async def wait_until_healthy(self, check: Callable[[], Any]) -> None:
        """Wait until the server has passed a health check; episodes that begin together share one."""
        if self._health is None:
            self._health = asyncio.create_task(check())
        checking = self._health
        try:
            await asyncio.shield(checking)
        except EnvServerError:
            if self._health is checking:
                self._health = None
            raise
