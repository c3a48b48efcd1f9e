"""Access control of a server: which requests are served.

- **Key**: with one, every request needs `Authorization: Bearer KEY`. It is required when other machines can reach the
  port.
- **Host**: a name in the header `Host` must be one of the server's. A web page can point a name of its own at the
  server's address (DNS rebinding), and the browser would then let it in; IP addresses and `localhost` are safe.
- **Origin**: a request with this header comes from a web page. Web pages are not served, except the server's own, if it
  has any (`own_pages`).
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from agent_r1.codec import write_json
from agent_r1.errors import ConfigError
from agent_r1.web.refusals import RefusedError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """What a request needs to be served."""

    token: str | None = field(default=None, repr=False)
    """The key, or None where none is needed."""
    host_names: frozenset[str] = frozenset()
    """Host names besides `localhost` and IP addresses that clients may use, in lower case."""
    token_name: str = "key"
    """What this server calls its key, in messages."""
    token_help: str = "send it as Authorization: Bearer KEY"
    """How a client gives the key."""
    own_pages: bool = False
    """Whether the server has web pages, whose requests it serves: `Origin` must then be the server itself."""

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raise `RefusedError` unless a request with these headers may be served."""
        values: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            values.setdefault(name.lower(), []).append(value)
        if b"origin" in values and not self._is_own_page(values):
            raise RefusedError(403, "forbidden", "requests of web pages (with an Origin) are not served")
        hosts = values.get(b"host", [])
        if len(hosts) != 1:
            raise RefusedError(400, "bad_request", f"expected one Host header, found {len(hosts)}")
        host = _host_name(hosts[0].decode("latin-1"))
        if not (host == "localhost" or host in self.host_names or _is_address(host)):
            raise RefusedError(
                403, "forbidden", f"the host name {host[:100]!r} is not this server's; allow it with --allow-host"
            )
        if self.token is not None:
            self._check_token(values.get(b"authorization", []))

    def _is_own_page(self, values: dict[bytes, list[bytes]]) -> bool:
        """Whether the page was served by this server, whose name is checked next."""
        origins = [origin.lower() for origin in values[b"origin"]]
        return self.own_pages and origins == [b"http://" + host.lower() for host in values.get(b"host", [])]

    def _check_token(self, headers: list[bytes]) -> None:
        scheme, _, token = (headers[0] if len(headers) == 1 else b"").partition(b" ")
        expected = (self.token or "").encode()
        if scheme.lower() != b"bearer" or not secrets.compare_digest(token.strip(), expected):
            observed = "a wrong one" if headers else "none"
            raise RefusedError(
                401, "unauthorized", f"this server needs its {self.token_name}, found {observed}: {self.token_help}"
            )


def make_access(
    host: str,
    *,
    key: str | None,
    allowed: Iterable[str] = (),
    token_name: str = "key",
    token_help: str = "send it as Authorization: Bearer KEY",
    own_pages: bool = False,
) -> Access:
    """The access rules of a server that listens on `host`; a key is made unless only this machine can reach it."""
    if not key and not is_loopback(host):
        key = secrets.token_urlsafe(24)
    names = {name.strip().lower().rstrip(".") for name in (socket.gethostname(), host, *allowed)}
    return Access(
        token=key or None,
        host_names=frozenset(names - {""}),
        token_name=token_name,
        token_help=token_help,
        own_pages=own_pages,
    )


def key_from_env(variable: str, named_by: str = "--key-env") -> str:
    """The key in the environment variable that an option names."""
    key = os.environ.get(variable)
    if not key:
        raise ConfigError(f"the environment variable {variable}, which {named_by} names, is not set")
    return key


def is_loopback(host: str) -> bool:
    """Whether a server that listens on `host` can be reached only from this machine.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_name(header: str) -> str:
    """The host name of a Host header, without the port, in lower case.

    >>> _host_name("Node7:8700"), _host_name("[::1]:80")
    ('node7', '::1')
    """
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].strip().lower().rstrip(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def refusal_body(refused: RefusedError) -> dict[str, Any]:
    """The default shape of a refusal."""
    return refused.body


class AccessControl:
    """ASGI middleware: passes on the requests that `access` allows and refuses the others.

    `body` gives the JSON object of a refusal, in the shape of the server's API.
    """

    def __init__(self, app: App, access: Access, body: Callable[[RefusedError], dict[str, Any]] = refusal_body) -> None:
        self._app = app
        self._access = access
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse one request."""
        if scope["type"] == "http":
            try:
                self._access.check(scope["headers"])
            except RefusedError as refused:
                await self._refuse(refused, send)
                return
        elif scope["type"] != "lifespan":
            return  # no web sockets
        await self._app(scope, receive, send)

    async def _refuse(self, refused: RefusedError, send: Send) -> None:
        content = write_json(self._body(refused)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        if refused.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await send({"type": "http.response.start", "status": refused.status, "headers": headers})
        await send({"type": "http.response.body", "body": content})
