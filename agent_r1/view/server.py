"""The HTTP server of `agent-r1 view`: the page, its files and the JSON addresses of docs/view.md. It only reads."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from agent_r1.codec import write_json
from agent_r1.errors import AgentR1Error, MissingExtraError
from agent_r1.view.api import NotFoundError, ViewApi
from agent_r1.view.live import LiveStreams
from agent_r1.view.page_files import content_type, page_files
from agent_r1.web import Access, AccessControl, RefusedError

try:
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import RedirectResponse, Response, StreamingResponse
    from starlette.routing import Route
except ImportError as missing:
    raise MissingExtraError(str(missing.name), "view", "agent-r1 view") from missing

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_NEVER_CHANGES = {"Cache-Control": "private, max-age=86400, immutable"}
_COOKIE = "agent_r1_view"
_RUN = "/api/runs/{run_id}"
_Make = Callable[[Request], dict[str, Any]]


def create_app(api: ViewApi, access: Access | None = None) -> Any:
    """The web application. Without `access` it serves requests to localhost and IP addresses only."""
    access = access or Access(own_pages=True)
    streams = LiveStreams(api)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        api.indexer.start()
        with _on_stop_signal(streams.close):
            yield
        await run_in_threadpool(api.indexer.stop)

    async def page(request: Request) -> Response:
        return _page(request, access)

    async def picture(request: Request) -> Response:
        path = request.path_params
        content = await run_in_threadpool(api.picture, path["run_id"], path["content_hash"])
        return Response(content, media_type="image/png", headers=_HEADERS | _NEVER_CHANGES)

    async def live(request: Request) -> Response:
        events = await streams.open(
            request.path_params["run_id"], request.query_params.get("since"), request.headers.get("last-event-id")
        )
        return StreamingResponse(events, media_type="text/event-stream", headers=_HEADERS)

    async def all_live(request: Request) -> Response:
        return StreamingResponse(streams.open_all(), media_type="text/event-stream", headers=_HEADERS)

    routes = [Route("/", page), Route("/static/{name:path}", _static), Route("/api/live", all_live)]
    routes += [Route(f"{_RUN}/live", live), Route(f"{_RUN}/images/{{content_hash}}", picture)]
    routes += [*(_answer(path, make) for path, make in _answers(api).items())]
    handlers: Any = {
        HTTPException: _refuse_http,
        RefusedError: lambda request, error: _refusal(error.status, error.kind, str(error)),
        NotFoundError: lambda request, error: _refusal(404, "not_found", str(error)),
        AgentR1Error: lambda request, error: _refusal(400, "bad_request", str(error)),
        Exception: lambda request, error: _refusal(500, "internal", "the server failed; its terminal says why"),
    }
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return KeyFromBrowser(AccessControl(app, access, lambda refused: _error(refused.kind, refused.message)))


@contextmanager
def _on_stop_signal(call: Callable[[], None]) -> Iterator[None]:
    """Within the block, `call` is called when a signal stops the server, before the server's own handler."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, frame: Any) -> None:
        call()
        handler = handlers[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    for number, handler in handlers.items():
        if callable(handler):
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is stop:
                signal.signal(number, handler)


def _answers(api: ViewApi) -> dict[str, _Make]:
    """What each address answers with."""

    def run_id(request: Request) -> str:
        return str(request.path_params["run_id"])

    def trajectory(request: Request) -> dict[str, Any]:
        with_tokens = request.query_params.get("tokens") != "0"
        return api.trajectory(run_id(request), request.path_params["key"], with_tokens=with_tokens)

    return {
        "/api/runs": lambda request: api.runs(),
        "/api/differences": lambda request: api.differences(_ids(request)),
        f"{_RUN}/metrics": lambda request: api.metrics(run_id(request), request.query_params.get("keys")),
        f"{_RUN}/config": lambda request: api.config(run_id(request)),
        f"{_RUN}/trajectories": lambda request: api.trajectories(run_id(request), request.query_params.multi_items()),
        f"{_RUN}/trajectories/{{key}}/text": lambda request: _text(api, request),
        f"{_RUN}/trajectories/{{key}}": trajectory,
        f"{_RUN}/groups/{{step}}/{{group}}": lambda request: _group(api, request),
        f"{_RUN}/tasks/{{task:path}}": lambda request: api.task(run_id(request), request.path_params["task"]),
    }


def _answer(path: str, make: _Make) -> Route:
    async def endpoint(request: Request) -> Response:
        return _json(await run_in_threadpool(make, request))

    return Route(path, endpoint)


class KeyFromBrowser:
    """ASGI middleware: a browser gives the key once, as `/?key=KEY`, and then in a cookie; both become the header that
    the access control reads."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request on."""
        if scope["type"] == "http" and not any(name.lower() == b"authorization" for name, _ in scope["headers"]):
            key = _given_key(scope)
            if key is not None:
                headers = [*scope["headers"], (b"authorization", b"Bearer " + key.encode("latin-1", "replace"))]
                scope = {**scope, "headers": headers}
        await self._app(scope, receive, send)


def _given_key(scope: Any) -> str | None:
    if scope["path"] == "/":
        keys = parse_qs(scope["query_string"].decode("latin-1")).get("key")
        if keys:
            return str(keys[0])
    for name, value in scope["headers"]:
        if name.lower() == b"cookie":
            try:
                cookie = SimpleCookie(value.decode("latin-1")).get(_COOKIE)
            except CookieError:
                continue
            if cookie is not None:
                return unquote(str(cookie.value))
    return None


def _page(request: Request, access: Access) -> Response:
    if "key" in request.query_params:  # not to stay in the history of the browser
        response = RedirectResponse("/", status_code=303, headers=_HEADERS)
        if access.token is not None:
            response.set_cookie(_COOKIE, quote(access.token, safe=""), httponly=True, samesite="lax", path="/")
        return response
    return _file("index.html")


async def _static(request: Request) -> Response:
    return _file(request.path_params["name"])


def _file(name: str) -> Response:
    content = page_files().get(name)
    if content is None:
        return _refusal(404, "not_found", f"the page has no file {name!r:.100}")
    return Response(content, media_type=content_type(name), headers=_HEADERS)


def _text(api: ViewApi, request: Request) -> dict[str, Any]:
    query = request.query_params
    path, where = request.path_params, query.get("path", "")
    offset, limit = (
        _whole_number("offset", query.get("offset", "0")),
        _whole_number("limit", query.get("limit", "200000")),
    )
    return api.text(path["run_id"], path["key"], where, offset, limit)


def _group(api: ViewApi, request: Request) -> dict[str, Any]:
    path = request.path_params
    step, group = _whole_number("step", path["step"]), _whole_number("group", path["group"])
    return api.group(path["run_id"], step, group, request.query_params.get("kind", "train"))


def _whole_number(name: str, text: str) -> int:
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) < 16):
        raise RefusedError(400, "bad_request", f"{name}={text!r:.60} is not a whole number")
    return int(text)


def _ids(request: Request) -> list[str]:
    return [run_id for run_id in request.query_params.get("runs", "").split(",") if run_id]


def _json(value: dict[str, Any], status: int = 200) -> Response:
    content = write_json(value, default=str)
    return Response(content.encode("ascii"), status_code=status, media_type="application/json", headers=_HEADERS)


def _refusal(status: int, kind: str, message: str) -> Response:
    return _json(_error(kind, message), status)


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"error": message[:2000], "kind": kind}


def _refuse_http(request: Request, error: HTTPException) -> Response:
    kind = {404: "not_found", 405: "not_allowed"}.get(error.status_code, "bad_request")
    return _refusal(error.status_code, kind, f"{request.method} {request.url.path[:200]}: {error.detail}")


def browser_address(url: str, access: Access) -> str:
    """What to open in a browser: with the key, where one is needed, and the name of this machine for every address."""
    for every in ("//0.0.0.0:", "//[::]:"):
        url = url.replace(every, f"//{socket.gethostname()}:")
    return url if access.token is None else f"{url}/?key={quote(access.token, safe='')}"
