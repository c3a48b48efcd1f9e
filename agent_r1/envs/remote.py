"""`RemoteEnv`: an environment that runs on a server (`agent-r1 env serve`), used like one that runs here.

    env: {name: remote, url: "http://10.0.0.7:8700", args: {size: 4}}

A step whose answer is lost is asked for again under the same request id, and the server answers it from memory. An
episode that the server does not know any more raises `EpisodeLostError`: the rollout is tried again with a fresh one.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from agent_r1.envs import wire
from agent_r1.envs.base import AgentEnv
from agent_r1.errors import ConfigError, EnvServerError, EpisodeError, EpisodeLostError, require_installed
from agent_r1.types import Action, Observation, StepResult, StopReason, Task

if TYPE_CHECKING:
    import httpx

_MAX_PAUSE = 8.0
_CLOSE_SECONDS = 5.0


@AgentEnv.register("remote")
class RemoteEnv(AgentEnv):
    """One episode of the environment at `url`, made there with `args`.

    `connect_seconds` and `read_seconds` bound one attempt. After a lost connection there are `retries` more, with
    pauses that double from `pause_seconds`. On a full server `reset` waits up to `wait_seconds` for a place.
    """

    def __init__(
        self,
        url: str,
        args: Mapping[str, Any] | None = None,
        connect_seconds: float = 5.0,
        read_seconds: float = 60.0,
        retries: int = 5,
        pause_seconds: float = 0.5,
        wait_seconds: float = 300.0,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"env.url={url} is no address; expected one like http://127.0.0.1:8700")
        require_installed("httpx", "httpx", "remote", "env.name=remote")
        self._url = url.rstrip("/")
        self._args = dict(args or {})
        self._timeouts = (connect_seconds, read_seconds)
        self._retries = retries
        self._pause_seconds = pause_seconds
        self._wait_seconds = wait_seconds
        self._server: _Server | None = None
        self._episode_id = ""
        self._num_steps = 0

    async def reset(self, task: Task) -> Observation:
        """Begin an episode on the server."""
        await self.close()
        self._server = _Server.lease(self._url)
        self._num_steps = 0
        await self._server.healthy(self._check_health)
        self._episode_id = uuid.uuid4().hex
        body = {"request_id": self._episode_id, "task": wire.task_to_json(task), "args": self._args}
        answer = await self._ask("POST", "/episodes", body, "reset")
        return wire.observation_from_json(answer["observation"])

    async def step(self, action: Action) -> StepResult:
        """Take the next step of the episode."""
        if not self._episode_id:
            raise RuntimeError("step of a RemoteEnv before its reset, or after its close")
        number = self._num_steps + 1
        body = {"request_id": uuid.uuid4().hex, "step": number, "action": wire.action_to_json(action)}
        answer = await self._ask("POST", f"/episodes/{self._episode_id}/step", body, f"step {number}")
        self._num_steps = number
        return wire.result_from_json(answer["result"])

    async def close(self) -> None:
        """End the episode on the server; one that cannot be told closes it when it has been idle for long enough."""
        server, self._server = self._server, None
        episode_id, self._episode_id = self._episode_id, ""
        if server is None:
            return
        try:
            if episode_id:
                with suppress(server.httpx.HTTPError):
                    await server.client.delete(f"{self._url}/episodes/{episode_id}", timeout=_CLOSE_SECONDS)
        finally:
            await server.release()

    async def _check_health(self) -> None:
        await self._ask("GET", "/health", None, "health check")

    async def _ask(self, method: str, path: str, body: wire.Json | None, what: str) -> wire.Json:
        """The answer to one request, which may take several attempts."""
        server = self._server
        if server is None:
            raise RuntimeError(f"{what} of a RemoteEnv that is closed")
        clock = asyncio.get_running_loop().time
        content = None if body is None else wire.dumps(body)
        patience = clock() + self._wait_seconds
        num_lost = 0
        pause = self._pause_seconds
        while True:
            try:
                answer = await self._attempt(server, method, path, content)
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
            if num_lost > self._retries:
                raise EnvServerError(
                    f"{what}: no answer from the environment server at {self._url} in {num_lost} attempts ({problem}). "
                    "Is it running? Start one with: agent-r1 env serve MODULE"
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)

    async def _attempt(self, server: _Server, method: str, path: str, content: bytes | None) -> httpx.Response:
        connect, read = self._timeouts
        timeout = server.httpx.Timeout(connect=connect, read=read, write=read, pool=None)
        headers = {"Content-Type": "application/json"}
        return await server.client.request(method, self._url + path, content=content, headers=headers, timeout=timeout)

    def _read(self, answer: httpx.Response, body: wire.Json | None, what: str) -> wire.Json:
        try:
            value = wire.loads(answer.content)
        except ValueError as error:
            raise _WrongAnswerError(f"HTTP {answer.status_code} and no JSON object: {answer.text[:200]!r}") from error
        if answer.status_code == 200:
            for key in ("request_id", "step"):
                if body is not None and value.get(key) != body.get(key):
                    raise _WrongAnswerError(f"it answered {key} {value.get(key)!r} where {body.get(key)!r} was asked")
            return value
        problem = value.get("error") or {}
        kind, message = problem.get("kind"), problem.get("message", answer.text[:200])
        if kind == "unknown_episode":
            raise EpisodeLostError(f"{what}: {message}; it was restarted, or the episode was idle for too long")
        if kind == "env_error":
            raise EpisodeError(StopReason.ENV_ERROR, f"{what} on {self._url}", str(problem.get("traceback") or message))
        raise EnvServerError(f"{what}: {self._url} answered HTTP {answer.status_code}: {message}")


class _WrongAnswerError(Exception):
    """An answer that is not to this request."""


def _seconds(retry_after: str | None) -> float:
    try:
        return float(retry_after or 0)
    except ValueError:
        return 0.0


class _Server:
    """The connections to one server, shared by all episodes of one event loop and closed with the last of them."""

    _open: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Server]]] = WeakKeyDictionary()

    def __init__(self, url: str, others: dict[str, _Server]) -> None:
        import httpx

        self.httpx = httpx
        # Environment servers stand in one's own network: a proxy for the outside is not asked.
        # Each episode has at most one request under way; a place in the pool is never what it waits for.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        self.client = httpx.AsyncClient(limits=limits, trust_env=False)
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

    async def release(self) -> None:
        """One user less."""
        self._num_users -= 1
        if self._num_users == 0:
            self._others.pop(self._url, None)
            if self._health is not None:
                self._health.cancel()
            await self.client.aclose()

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
