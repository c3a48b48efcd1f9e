"""The web application of a `ModelServer` (extra `serve`).

POST /v1/chat/completions    POST /v1/completions    POST /v1/agent
GET  /v1/models              GET  /health            GET  /metrics
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from agent_r1.codec import write_json
from agent_r1.errors import MissingExtraError
from agent_r1.openai_api import ApiError, path_error, read_async, refusal_body
from agent_r1.web import (
    CLIENT_DISCONNECTED,
    Access,
    AccessControl,
    RefusedError,
    read_body,
    read_object,
    while_connected,
)

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import Route
except ImportError as missing:
    raise MissingExtraError(str(missing.name), "serve", "agent-r1 serve") from missing

from agent_r1.serving.event_response import EventStream, deadline_error
from agent_r1.serving.events import Reserved
from agent_r1.serving.service import ModelServer

_Endpoint = Callable[[Request], Awaitable[Response]]
_Read = Callable[[dict[str, Any]], Any]
_Whole = Callable[[Any], Coroutine[Any, Any, dict[str, Any]]]
_Events = Callable[[Any], Reserved]


def create_app(server: ModelServer, access: Access | None = None) -> AccessControl:
    """The ASGI application. Without `access` it serves requests to localhost and IP addresses, without a key."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with server.running():
            yield

    async def models(request: Request) -> Response:
        return _json(server.models())

    async def one_model(request: Request) -> Response:
        [entry] = server.models()["data"]
        if request.path_params["name"] != entry["id"]:
            message = f"there is no such model; this server has {entry['id']!r}"
            return _json(ApiError(message, code="not_found").body, 404)
        return _json(entry)

    async def health(request: Request) -> Response:
        return _json(server.health())

    async def metrics(request: Request) -> Response:
        return Response(server.metrics_text(), media_type="text/plain; version=0.0.4")

    agent, slots = server.agent_mode, server.slots
    routes = [
        Route(
            "/v1/chat/completions",
            _post_endpoint(server, server.read_chat, server.chat, server.stream_chat),
            methods=["POST"],
        ),
        Route(
            "/v1/completions",
            _post_endpoint(server, server.read_completion, server.complete, server.stream_completion),
            methods=["POST"],
        ),
        Route(
            "/v1/agent",
            _post_endpoint(server, server.read_agent, lambda r: agent.run(r, slots), lambda r: agent.stream(r, slots)),
            methods=["POST"],
        ),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", one_model),
        Route("/health", health),
        Route("/metrics", metrics),
    ]
    handlers: dict[Any, Any] = {HTTPException: _refuse_path, Exception: _broken}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return AccessControl(app, access or Access(), body=refusal_body)


def _post_endpoint(server: ModelServer, read: _Read, whole: _Whole, events: _Events) -> _Endpoint:
    """The endpoint of a request with a JSON body, which is answered as a whole or with events."""
    limits, metrics = server.limits, server.metrics

    async def endpoint(request: Request) -> Response:
        path, started = str(request.scope["path"]), time.perf_counter()

        def end(status: int) -> None:
            metrics.requests[path, status] += 1
            metrics.duration.add(time.perf_counter() - started)

        try:
            body = await read_body(
                request, max_bytes=limits.body_bytes, seconds=limits.body_seconds, limit_name="--body-mb"
            )
            parsed = await read_async(read, read_object(body))
            if parsed.stream:
                return EventStream(events(parsed), seconds=limits.request_seconds, on_end=end)
            response = _json(await while_connected(request, _in_time(whole(parsed), limits.request_seconds)))
        except RefusedError as refused:
            response = _json(refusal_body(refused), refused.status)
        except ApiError as error:
            response = _json(error.body, error.status)
        except ClientDisconnect:
            response = Response(status_code=CLIENT_DISCONNECTED)
        except Exception:  # `_broken` answers it
            end(500)
            raise
        end(response.status_code)
        return response

    return endpoint


async def _in_time(call: Coroutine[Any, Any, dict[str, Any]], seconds: float) -> dict[str, Any]:
    try:
        async with asyncio.timeout(seconds):
            return await call
    except TimeoutError:
        raise deadline_error(seconds) from None
    except BaseExceptionGroup as group:  # of several choices; the first error says what is wrong
        raise group.exceptions[0] from None


def _json(value: dict[str, Any], status: int = 200) -> Response:
    headers = {"Retry-After": "1"} if status == 429 else None
    return Response(write_json(value), status, headers, media_type="application/json")


async def _refuse_path(request: Request, error: HTTPException) -> Response:
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    served = [f"{method} {route.path}" for route in routes for method in sorted((route.methods or set()) - {"HEAD"})]
    refused = path_error(request.method, str(request.scope["path"]), error.status_code, served, code="not_found")
    return _json(refused.body, refused.status)


async def _broken(request: Request, error: Exception) -> Response:
    """An error of the server; its traceback goes to the log, not to the client."""
    return _json(ApiError(f"the server failed with a {type(error).__name__}", status=500, code="internal").body, 500)
