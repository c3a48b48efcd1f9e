"""Access control of the environment server: that of every server (`agent_r1.web`), with a token from the configuration
or the environment."""

from __future__ import annotations

from collections.abc import Iterable

from agent_r1.web import Access
from agent_r1.web import make_access as make_server_access

TOKEN_VARIABLE = "AGENT_R1_ENV_TOKEN"


def make_access(host: str, *, token: str | None, allowed: Iterable[str] = ()) -> Access:
    """The access rules of a server that listens on `host`; a token is made unless only this machine can reach it."""
    return make_server_access(
        host, key=token, allowed=allowed, token_name="token", token_help=f"set env.token or {TOKEN_VARIABLE}"
    )
