"""The HTTP server behind `agent-r1 env serve` (extra `serve`).

    POST   /episodes               {request_id, task, args}      -> {request_id, episode_id, observation}
    POST   /episodes/{id}/step     {request_id, step, action}    -> {request_id, step, result}
    DELETE /episodes/{id}                                        -> {episode_id, closed}
    GET    /health                                               -> {name, version, episodes_open, ...}

A request that is sent again because its response was lost has the same `request_id`: it gets the response of the first
one, and nothing runs twice. An episode has the id of the request that began it, so that it can be closed even when that
response was lost. Errors are `{"error": {"kind", "message", "traceback"}}`:

    bad_request      400   not JSON, or a broken header
    unauthorized     401   the token is missing or wrong
    forbidden        403   a host name that is not the server's, or a web page (`agent_r1.web`)
    unknown_episode  404   never begun here, expired, or begun before a restart
    not_found        404   no such path
    not_allowed      405   no such method there
    slow_request     408   the request did not arrive in time
    out_of_order     409   the step is not the next one
    too_large        413   the request is larger than --body-mb
    invalid          422   JSON, but not what this page says; the message names the field
    env_error        500   the environment raised; with its traceback
    full             503   no slot for another episode; Retry-After says when to retry
    deadline         504   reset or step took longer than --call-seconds; the episode is closed
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from agent_r1.codec import WireError, records
from agent_r1.envs.base import AgentEnv
from agent_r1.envs.remote.access import make_access
from agent_r1.envs.remote.episodes import EnvFactory, EnvService, ServiceLimits
from agent_r1.errors import ConfigError, MissingExtraError, UnknownNameError
from agent_r1.registry import load_module, load_object
from agent_r1.web import (
    CLIENT_DISCONNECTED,
    Access,
    AccessControl,
    RefusedError,
    listen,
    read_body,
    serve_forever,
    while_connected,
)

try:
    from fastapi import FastAPI, Request, Response
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
except ImportError as missing:
    raise MissingExtraError(str(missing.name), "serve", "agent-r1 env serve") from missing

__all__ = ["Access", "EnvService", "ServiceLimits", "create_app", "find_factory", "make_access", "serve"]


def create_app(service: EnvService, access: Access | None = None) -> FastAPI:
    """The web application of a service. Without `access` it serves requests to localhost and IP addresses only."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        expiring = asyncio.create_task(service.expire())
        yield
        expiring.cancel()
        await service.close()

    title = f"Agent-R1 environment {service.name}"
    app = FastAPI(title=title, lifespan=lifespan, openapi_url=None, redirect_slashes=False)
    app.add_middleware(AccessControl, access=access or Access())

    @app.exception_handler(HTTPException)
    async def refuse(request: Request, error: HTTPException) -> Response:
        kind = {404: "not_found", 405: "not_allowed"}.get(error.status_code, "bad_request")
        message = f"{request.method} {str(request.scope['path'])[:200]}: {error.detail}"
        return _refusal(RefusedError(error.status_code, kind, message))

    @app.get("/health")
    async def health() -> Response:
        return _response(records.dumps(service.health()))

    @app.post("/episodes")
    async def begin(request: Request) -> Response:
        return await _serve_request(request, service, service.begin)

    @app.post("/episodes/{episode_id}/step")
    async def step(episode_id: str, request: Request) -> Response:
        return await _serve_request(request, service, lambda body: service.step(episode_id, body))

    @app.delete("/episodes/{episode_id}")
    async def end(episode_id: str) -> Response:
        return _response(await service.end(episode_id))

    return app


async def _serve_request(
    request: Request, service: EnvService, call: Callable[[records.Json], Awaitable[bytes]]
) -> Response:
    try:
        body = _parse(await _read_body(request, service.limits))
        return _response(await while_connected(request, call(body)))
    except RefusedError as refused:
        return _refusal(refused)
    except WireError as error:
        return _refusal(RefusedError(422, "invalid", str(error)[:1000]))
    except ClientDisconnect:
        return Response(status_code=CLIENT_DISCONNECTED)


def _parse(content: bytes) -> records.Json:
    try:
        return records.loads(content)
    except WireError as error:
        raise RefusedError(400, "bad_request", str(error)[:1000]) from None


async def _read_body(request: Request, limits: ServiceLimits) -> bytes:
    max_bytes = int(limits.body_mb * (1 << 20))
    return await read_body(request, max_bytes=max_bytes, seconds=limits.body_seconds, limit_name="--body-mb")


def _response(content: bytes) -> Response:
    return Response(content, media_type="application/json")


def _refusal(refused: RefusedError) -> Response:
    headers = {"Retry-After": "1"} if refused.status == 503 else None
    content = records.dumps(refused.body)
    return Response(content, status_code=refused.status, headers=headers, media_type="application/json")


def find_factory(reference: str) -> EnvFactory:
    """The environment that `MODULE` or `MODULE:ATTRIBUTE` names; a module must define exactly one."""
    if ":" in reference:
        env_class = load_object(reference, kind="environment")
        if not callable(env_class):
            raise ConfigError(
                f"'{reference}' is a {type(env_class).__name__}; expected an environment class or a function"
            )
        factory: EnvFactory = env_class
        return factory
    try:
        module = load_module(reference)
    except ModuleNotFoundError as error:
        raise UnknownNameError(f"there is no module '{reference}' ({error}); run this where the module is") from error
    classes = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, AgentEnv) and value.__module__ == module.__name__
    ]
    if len(classes) != 1:
        names = ", ".join(f"{reference}:{value.__name__}" for value in classes) or "none"
        raise ConfigError(f"'{reference}' must define exactly one environment, found: {names}. Name one of them")
    only: EnvFactory = classes[0]
    return only


def serve(
    service: EnvService,
    host: str,
    port: int,
    announce: Callable[[str], None],
    *,
    access: Access | None = None,
    shutdown_seconds: int = 5,
) -> None:
    """Serve until a signal stops it; `announce` is called with the URL as soon as clients can connect."""
    app = create_app(service, access)
    serve_forever(app, listen(host, port), announce, shutdown_seconds=shutdown_seconds)
