"""Access control of the environment server: which requests are served.

- **Token**: with one, every request needs `Authorization: Bearer TOKEN`. It is required when other machines can reach
  the port.
- **Host**: a name in the header `Host` must be one of the server's. A web page can point a name of its own at the
  server's address (DNS rebinding), and the browser would then let it in; IP addresses and `localhost` are safe.
- **Origin**: a request with this header comes from a web page, and web pages are not served.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from agent_r1.codec import records
from agent_r1.envs.remote.episodes import RefusedError

TOKEN_VARIABLE = "AGENT_R1_ENV_TOKEN"

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """What a request needs to be served."""

    token: str | None = field(default=None, repr=False)
    """The token, or None where none is needed."""
    host_names: frozenset[str] = frozenset()
    """Host names besides `localhost` and IP addresses that clients may use, in lower case."""

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raise `RefusedError` unless a request with these headers may be served."""
        values: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            values.setdefault(name.lower(), []).append(value)
        if b"origin" in values:
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

    def _check_token(self, headers: list[bytes]) -> None:
        scheme, _, token = (headers[0] if len(headers) == 1 else b"").partition(b" ")
        expected = (self.token or "").encode()
        if scheme.lower() != b"bearer" or not secrets.compare_digest(token.strip(), expected):
            found = "a wrong one" if headers else "none"
            raise RefusedError(
                401, "unauthorized", f"this server needs its token, found {found}: set env.token or {TOKEN_VARIABLE}"
            )


def make_access(host: str, *, token: str | None, allowed: Iterable[str] = ()) -> Access:
    """The access rules of a server that listens on `host`; a token is made unless only this machine can reach it."""
    if not token and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    names = {name.strip().lower().rstrip(".") for name in (socket.gethostname(), host, *allowed)}
    return Access(token=token or None, host_names=frozenset(names - {""}))


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


class AccessControl:
    """ASGI middleware: passes on the requests that `access` allows and refuses the others."""

    def __init__(self, app: Callable[[_Scope, _Receive, _Send], Awaitable[None]], access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Serve or refuse one request."""
        if scope["type"] == "http":
            try:
                self._access.check(scope["headers"])
            except RefusedError as refused:
                await _send_refusal(refused, send)
                return
        elif scope["type"] != "lifespan":
            return  # no web sockets
        await self._app(scope, receive, send)


async def _send_refusal(refused: RefusedError, send: _Send) -> None:
    content = records.dumps(refused.body)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    if refused.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
