"""Errors of the API, in the shape that OpenAI's clients read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agent_r1.web import RefusedError

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """A request that is not answered: status, message, and the field that is wrong.

    >>> ApiError("n is 0; give at least 1", param="n").body["error"]["type"]
    'invalid_request_error'
    """

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        """The error as a JSON object: `{"error": {"message", "type", "param", "code"}}`."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def path_error(method: str, path: str, status: int, served: Iterable[str], *, code: str = "unknown_url") -> ApiError:
    """The error for a path or a method that a server does not have; `served` are those it has, such as
    `POST /v1/completions`."""
    to_do = ""
    if path.rstrip("/").endswith("/responses"):
        to_do = "set your client to chat completions (OpenAI Agents SDK: set_default_openai_api('chat_completions')); "
    message = f"{method} {path[:200]} is not served here: {to_do}this server has {', '.join(served)}"
    return ApiError(message, status=status, code=code)


def refusal_body(refused: RefusedError) -> dict[str, Any]:
    """What `agent_r1.web` refuses, in this shape."""
    return ApiError(refused.message, status=refused.status, code=refused.kind).body
