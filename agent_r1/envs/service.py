"""Environments as a service: the server behind `agent-r1 env serve` (extra `serve`).

    POST   /episodes               {request_id, task, args}      -> {request_id, episode_id, observation}
    POST   /episodes/{id}/step     {request_id, step, action}    -> {request_id, step, result}
    DELETE /episodes/{id}                                        -> {episode_id, closed}
    GET    /health                                               -> {name, version, episodes_open, ...}

A request that is sent again, because its answer was lost, has the same `request_id`: it is answered with what the first
one gave and nothing runs twice. An episode has the id of the request that began it, so that one whose first answer was
lost can still be closed. What goes wrong is `{"error": {"kind", "message", "traceback"}}`:

    env_error        500   reset or step raised
    unknown_episode  404   never begun here, expired, or begun before a restart
    out_of_order     409   the step is not the next one
    full             503   no place for another episode; Retry-After says when to ask again
    bad_request      400   not what this page says
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import agent_r1
from agent_r1.envs import wire
from agent_r1.envs.base import AgentEnv, as_step_result
from agent_r1.errors import ConfigError, EpisodeError, MissingExtraError, UnknownNameError, boundary
from agent_r1.registry import load_module, load_object
from agent_r1.types import Observation, StopReason

try:
    import uvicorn
    from fastapi import FastAPI, Request, Response
except ImportError as missing:
    raise MissingExtraError(str(missing.name), "serve", "agent-r1 env serve") from missing

EnvFactory = Callable[..., AgentEnv]
"""An environment class, or a function that makes one; called with a client's `args`."""


_CLOSE_SECONDS = 10.0


class _RefusedError(Exception):
    """A request that cannot be served, as the answer says it."""

    def __init__(self, status: int, kind: str, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"kind": kind, "message": message, "traceback": traceback}}


class _Episode:
    """One environment with what is remembered of its last call."""

    def __init__(self, episode_id: str, env: AgentEnv) -> None:
        self.episode_id = episode_id
        self.env = env
        self.num_steps = 0
        self.last_request = episode_id
        self.last_call: asyncio.Task[bytes]
        self.last_used = time.monotonic()

    def begin(self, request_id: str, call: Callable[[], Awaitable[bytes]]) -> None:
        """Run a call; its answer is kept until the next one."""

        async def run() -> bytes:
            try:
                return await call()
            finally:
                self.last_used = time.monotonic()

        self.last_request = request_id
        self.last_call = asyncio.create_task(run())

    async def answer(self) -> bytes:
        """What the last call gave, also for a client that asks again while it runs."""
        return await asyncio.shield(self.last_call)

    def is_idle(self, seconds: float) -> bool:
        """Nobody has used it for so long."""
        return self.last_call.done() and time.monotonic() - self.last_used > seconds

    async def close(self) -> None:
        """Stop what runs and close the environment. What its `close` raises helps nobody here."""
        self.last_call.cancel()
        await asyncio.wait({self.last_call}, timeout=_CLOSE_SECONDS)
        if self.last_call.done() and not self.last_call.cancelled():
            self.last_call.exception()  # a failure nobody asked for is not a warning of the event loop
        with suppress(EpisodeError), boundary(StopReason.ENV_ERROR, "close"):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.env.close()


class EnvService:
    """The open episodes of one served environment."""

    def __init__(self, factory: EnvFactory, *, name: str, max_episodes: int = 256, idle_seconds: float = 600.0) -> None:
        self.name = name
        self.max_episodes = max_episodes
        self.idle_seconds = idle_seconds
        self._factory = factory
        self._episodes: dict[str, _Episode] = {}
        self._instance = secrets.token_hex(8)
        self._started = time.monotonic()

    def health(self) -> wire.Json:
        """Who serves, and how much."""
        return {
            "name": self.name,
            "version": agent_r1.__version__,
            "instance": self._instance,
            "episodes_open": len(self._episodes),
            "max_episodes": self.max_episodes,
            "uptime_seconds": time.monotonic() - self._started,
        }

    async def begin(self, body: wire.Json) -> bytes:
        """Make an environment and reset it."""
        request_id = str(body["request_id"])
        if request_id not in self._episodes:
            task, args = wire.task_from_json(body["task"]), dict(body.get("args") or {})
            if len(self._episodes) >= self.max_episodes:
                raise _RefusedError(503, "full", f"all {self.max_episodes} episodes of {self.name} are taken")
            with _env_errors(f"making {self.name}"):
                episode = _Episode(request_id, self._factory(**args))
            self._episodes[request_id] = episode

            async def reset() -> bytes:
                seen = await episode.env.reset(task)
                if not isinstance(seen, Observation):
                    raise ConfigError(f"reset must return an Observation, got {type(seen).__name__}")
                return wire.dumps(
                    {
                        "request_id": request_id,
                        "episode_id": request_id,
                        "observation": wire.observation_to_json(seen),
                    }
                )

            episode.begin(request_id, reset)
        return await self._answer(self._episodes[request_id], f"reset of {self.name}")

    async def step(self, episode_id: str, body: wire.Json) -> bytes:
        """Take a step, or repeat the answer to one that was taken."""
        episode = self._episodes.get(episode_id)
        if episode is None:
            raise _RefusedError(404, "unknown_episode", f"{self.name} has no episode '{episode_id}' on this server")
        request_id, number = str(body["request_id"]), int(body["step"])
        if request_id != episode.last_request:
            action = wire.action_from_json(body["action"])
            if number != episode.num_steps + 1 or not episode.last_call.done():
                raise _RefusedError(
                    409, "out_of_order", f"step {number} of an episode that has begun {episode.num_steps} steps"
                )

            async def take() -> bytes:
                result = as_step_result(await episode.env.step(action))
                return wire.dumps({"request_id": request_id, "step": number, "result": wire.result_to_json(result)})

            episode.num_steps = number
            episode.begin(request_id, take)
        return await self._answer(episode, f"step {number} of {self.name}")

    async def _answer(self, episode: _Episode, where: str) -> bytes:
        episode.last_used = time.monotonic()
        try:
            with _env_errors(where):
                return await episode.answer()
        except asyncio.CancelledError:
            if not episode.last_call.cancelled():
                raise
            raise _RefusedError(404, "unknown_episode", f"the episode was closed during {where}") from None
        except _RefusedError:
            if episode.num_steps == 0:
                await self.end(episode.episode_id)
            raise

    async def end(self, episode_id: str) -> bytes:
        """Close an episode; one that is gone already is no error."""
        episode = self._episodes.pop(episode_id, None)
        if episode is not None:
            await episode.close()
        return wire.dumps({"episode_id": episode_id, "closed": episode is not None})

    async def close(self) -> None:
        """Close every episode."""
        await asyncio.gather(*(self.end(episode_id) for episode_id in list(self._episodes)))

    async def expire(self) -> None:
        """Close idle episodes, for ever."""
        while True:
            await asyncio.sleep(min(self.idle_seconds / 4, 5.0))
            idle = [key for key, episode in self._episodes.items() if episode.is_idle(self.idle_seconds)]
            await asyncio.gather(*(self.end(episode_id) for episode_id in idle))


@contextmanager
def _env_errors(where: str) -> Iterator[None]:
    """Within this block an exception of the environment is the answer `env_error` with its traceback."""
    try:
        with boundary(StopReason.ENV_ERROR, where):
            yield
    except EpisodeError as failure:
        last_line = failure.details.strip().splitlines()[-1]
        raise _RefusedError(500, "env_error", f"{where}: {last_line}", failure.details) from None


def create_app(service: EnvService) -> FastAPI:
    """The web application of a service."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        expiring = asyncio.create_task(service.expire())
        yield
        expiring.cancel()
        await service.close()

    app = FastAPI(title=f"Agent-R1 environment {service.name}", lifespan=lifespan)

    async def served(call: Awaitable[bytes]) -> Response:
        try:
            return Response(await call, media_type="application/json")
        except _RefusedError as refused:
            headers = {"Retry-After": "1"} if refused.status == 503 else None
            body = wire.dumps(refused.body)
            return Response(body, status_code=refused.status, headers=headers, media_type="application/json")
        except (KeyError, TypeError, ValueError) as error:
            body = wire.dumps({"error": {"kind": "bad_request", "message": repr(error), "traceback": ""}})
            return Response(body, status_code=400, media_type="application/json")

    @app.get("/health")
    async def health() -> Response:
        return Response(wire.dumps(service.health()), media_type="application/json")

    @app.post("/episodes")
    async def begin(request: Request) -> Response:
        return await served(_with_body(request, service.begin))

    @app.post("/episodes/{episode_id}/step")
    async def step(episode_id: str, request: Request) -> Response:
        return await served(_with_body(request, lambda body: service.step(episode_id, body)))

    @app.delete("/episodes/{episode_id}")
    async def end(episode_id: str) -> Response:
        return await served(service.end(episode_id))

    return app


async def _with_body(request: Request, call: Callable[[wire.Json], Awaitable[bytes]]) -> bytes:
    return await call(wire.loads(await request.body()))


def find_factory(reference: str) -> EnvFactory:
    """What `MODULE` or `MODULE:ATTRIBUTE` names; a module must define exactly one environment."""
    if ":" in reference:
        found = load_object(reference, kind="environment")
        if not callable(found):
            raise ConfigError(f"'{reference}' is a {type(found).__name__}; expected an environment class or a function")
        factory: EnvFactory = found
        return factory
    try:
        module = load_module(reference)
    except ModuleNotFoundError as error:
        raise UnknownNameError(f"there is no module '{reference}' ({error}); run this where the module is") from error
    own = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, AgentEnv) and value.__module__ == module.__name__
    ]
    if len(own) != 1:
        names = ", ".join(f"{reference}:{value.__name__}" for value in own) or "none"
        raise ConfigError(f"'{reference}' must define exactly one environment, found: {names}. Name one of them")
    only: EnvFactory = own[0]
    return only


def serve(
    service: EnvService, host: str, port: int, announce: Callable[[str], None], *, shutdown_seconds: int = 5
) -> None:
    """Serve until a signal says stop; `announce` gets the address as soon as clients can connect."""
    listener = _listener(host, port)
    bound_host, bound_port = listener.getsockname()[:2]
    shown = f"[{bound_host}]" if ":" in bound_host else bound_host
    config = uvicorn.Config(
        create_app(service), log_level="warning", timeout_graceful_shutdown=shutdown_seconds, lifespan="on"
    )
    announce(f"http://{shown}:{bound_port}")
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from error
    listener.listen(1024)
    return listener
