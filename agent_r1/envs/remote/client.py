"""`RemoteEnv`: an environment that runs on a server (`agent-r1 env serve`), used like one that runs here.

    env: {name: remote, url: "http://10.0.0.7:8700", args: {size: 4}}

A server that other machines can reach needs a token: set the variable AGENT_R1_ENV_TOKEN, or `token`, which is saved
with the configuration of a run.

A step whose answer is lost is asked for again under the same request id, and the server answers it from memory. An
episode that the server does not know any more raises `EpisodeLostError`: the rollout is tried again with a fresh one.
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

if TYPE_CHECKING:
    import httpx

_TOKEN_VARIABLE = "AGENT_R1_ENV_TOKEN"
_MAX_PAUSE = 8.0
_CLOSE_SECONDS = 5.0


@AgentEnv.register("remote")
class RemoteEnv(AgentEnv):
    """One episode of the environment at `url`, made there with `args`.

    `connect_seconds` and `read_seconds` bound one attempt. After a lost connection there are `retries` more, with
    pauses that double from `pause_seconds`. On a full server `reset` waits up to `wait_seconds` for a place. `token` is
    the server's, when it needs one; without it the variable AGENT_R1_ENV_TOKEN is read.
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
        self._server: _Server | None = None
        self._client: httpx.AsyncClient | None = None
        self._episode_id = ""
        self._num_steps = 0
        self._num_lost = 0

    async def reset(self, task: Task) -> Observation:
        """Begin an episode on the server."""
        await self.close()
        self._server = _Server.lease(self._url)
        self._client = self._server.take_client()
        self._num_steps = 0
        self._num_lost = 0
        await self._server.healthy(self._check_health)
        self._episode_id = uuid.uuid4().hex
        body = {"request_id": self._episode_id, "task": records.task_to_json(task), "args": self._args}
        answer = await self._ask("POST", "/episodes", body, "reset")
        with self._wire_errors("reset"):
            return records.observation_from_json(answer.get("observation"))

    async def step(self, action: Action) -> StepResult:
        """Take the next step of the episode."""
        if not self._episode_id:
            raise RuntimeError("step of a RemoteEnv before its reset, or after its close")
        number = self._num_steps + 1
        body = {"request_id": uuid.uuid4().hex, "step": number, "action": records.action_to_json(action)}
        answer = await self._ask("POST", f"/episodes/{self._episode_id}/step", body, f"step {number}")
        self._num_steps = number
        with self._wire_errors(f"step {number}"):
            return self._counted(records.result_from_json(answer.get("result")))

    @contextmanager
    def _wire_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except WireError as error:
            raise EnvServerError(f"{what}: {self._url} answered what is no answer of this version: {error}") from error

    def _counted(self, result: StepResult) -> StepResult:
        """The result with what was lost on the way to it: an episode that asking again saved still tells of it."""
        if not self._num_lost:
            return result
        metrics = {**result.info.get("metrics", {}), "episode/env_retries": float(self._num_lost)}
        self._num_lost = 0
        return replace(result, info={**result.info, "metrics": metrics})

    async def close(self) -> None:
        """End the episode on the server; one that cannot be told closes it when it has been idle for long enough."""
        server, self._server = self._server, None
        client, self._client = self._client, None
        episode_id, self._episode_id = self._episode_id, ""
        if server is None or client is None:
            return
        try:
            if episode_id:
                with suppress(server.httpx.HTTPError):
                    url = f"{self._url}/episodes/{episode_id}"
                    await client.delete(url, headers=self._headers, timeout=_CLOSE_SECONDS)
        finally:
            await server.release(client)

    async def _check_health(self) -> None:
        await self._ask("GET", "/health", None, "health check")

    async def _ask(self, method: str, path: str, body: records.Json | None, what: str) -> records.Json:
        """The answer to one request, which may take several attempts."""
        server, client = self._server, self._client
        if server is None or client is None:
            raise RuntimeError(f"{what} of a RemoteEnv that is closed")
        clock = asyncio.get_running_loop().time
        content = None if body is None else records.dumps(body)
        patience = clock() + self._wait_seconds
        num_lost = 0
        pause = self._pause_seconds
        while True:
            try:
                answer = await self._attempt(client, server.timeout(*self._timeouts), method, path, content)
                if answer.status_code != 503:
                    return self._read(answer, body, what)
                problem = "it is full"
                pause = max(pause, _seconds(answer.headers.get("Retry-After")))
                if clock() + pause > patience:
                    raise EnvServerError(
                        f"{what}: the environment server at {self._url} had no place for another episode in "
                        f"{self._wait_seconds:g} s; raise its --max-episodes or lower rollout.concurrency"
                    )
            except (server.httpx.TransportError, _WrongAnswerError) as error:
                problem = f"{type(error).__name__}: {error}"
                num_lost += 1
                self._num_lost += 1
            if num_lost > self._retries:
                raise EnvServerError(
                    f"{what}: no answer from the environment server at {self._url} in {num_lost} attempts ({problem}). "
                    "Is it running? Start one with: agent-r1 env serve MODULE"
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)

    async def _attempt(
        self, client: httpx.AsyncClient, timeout: httpx.Timeout, method: str, path: str, content: bytes | None
    ) -> httpx.Response:
        url = self._url + path
        return await client.request(method, url, content=content, headers=self._headers, timeout=timeout)

    def _read(self, answer: httpx.Response, body: records.Json | None, what: str) -> records.Json:
        try:
            value = records.loads(answer.content)
        except ValueError as error:
            raise _WrongAnswerError(f"HTTP {answer.status_code} and no JSON object: {answer.text[:200]!r}") from error
        if answer.status_code == 200:
            for key in ("request_id", "step"):
                if body is not None and value.get(key) != body.get(key):
                    raise _WrongAnswerError(f"it answered {key} {value.get(key)!r} where {body.get(key)!r} was asked")
            return value
        problem = value.get("error")
        if not isinstance(problem, dict):
            problem = {}
        kind, message = problem.get("kind"), problem.get("message", answer.text[:200])
        if answer.status_code in (401, 403):
            raise EnvServerError(f"{what}: {self._url} refuses us (HTTP {answer.status_code}): {message}")
        if kind == "unknown_episode":
            raise EpisodeLostError(f"{what}: {message}; it was restarted, or the episode was idle for too long")
        if kind in ("env_error", "deadline"):
            raise EpisodeError(StopReason.ENV_ERROR, f"{what} on {self._url}", str(problem.get("traceback") or message))
        raise EnvServerError(f"{what}: {self._url} answered HTTP {answer.status_code}: {message}")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"env.url={url} is no address ({error}); expected one like http://127.0.0.1:8700") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ConfigError(f"env.url={url} is no address; expected one like http://127.0.0.1:8700")


def _headers(token: str | None) -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    if token:
        if not token.isascii() or not token.isprintable():
            raise ConfigError(f"env.token (or {_TOKEN_VARIABLE}) must be printable ASCII, as a header is")
        headers["Authorization"] = f"Bearer {token}"
    return headers


class _WrongAnswerError(Exception):
    """An answer that is not to this request."""


def _seconds(retry_after: str | None) -> float:
    try:
        return float(retry_after or 0)
    except ValueError:
        return 0.0


def _end_the_search_for_sniffio() -> None:
    """httpcore tries to import `sniffio` for every lock it makes. Where it is not installed, every try searches the
    whole path, which is half of what a request costs; after this it fails at once."""
    try:
        import_module("sniffio")
    except ImportError:
        sys.modules.setdefault("sniffio", None)  # type: ignore[arg-type]


class _Server:
    """The connections to one server, shared by all episodes of one event loop and closed with the last of them.

    An episode has a connection to itself while it lasts and leaves it to the next one. In a pool that all of them
    share, every request looks at every connection: with hundreds of episodes that is most of what a step costs.
    """

    _open: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Server]]] = WeakKeyDictionary()

    def __init__(self, url: str, others: dict[str, _Server]) -> None:
        import httpx

        self.httpx = httpx
        _end_the_search_for_sniffio()
        # Reading the certificates takes longer than all else: once, and only where they are needed.
        self._verify = httpx.create_ssl_context() if url.startswith("https://") else False
        self._idle: list[httpx.AsyncClient] = []
        self._url = url
        self._others = others
        self._num_users = 0
        self._health: asyncio.Task[None] | None = None

    @classmethod
    def lease(cls, url: str) -> _Server:
        """The server at `url`; to be given back with `release`."""
        servers = cls._open.setdefault(asyncio.get_running_loop(), {})
        server = servers.get(url) or servers.setdefault(url, cls(url, servers))
        server._num_users += 1
        return server

    def take_client(self) -> httpx.AsyncClient:
        """A connection for one episode: one that another has left, or a new one."""
        if self._idle:
            return self._idle.pop()
        # Environment servers stand in one's own network: a proxy for the outside is not asked.
        return self.httpx.AsyncClient(verify=self._verify, trust_env=False)

    def timeout(self, connect: float, read: float) -> httpx.Timeout:
        """The bounds of one attempt."""
        return self.httpx.Timeout(connect=connect, read=read, write=read, pool=None)

    async def release(self, client: httpx.AsyncClient) -> None:
        """One user less, whose connection another may have."""
        self._num_users -= 1
        self._idle.append(client)
        if self._num_users == 0:
            self._others.pop(self._url, None)
            if self._health is not None:
                self._health.cancel()
            await asyncio.gather(*(idle.aclose() for idle in self._idle))

    async def healthy(self, check: Callable[[], Any]) -> None:
        """Return when the server has answered a health check. Episodes that begin together share one."""
        if self._health is None:
            self._health = asyncio.create_task(check())
        checking = self._health
        try:
            await asyncio.shield(checking)
        except EnvServerError:
            if self._health is checking:
                self._health = None
            raise
