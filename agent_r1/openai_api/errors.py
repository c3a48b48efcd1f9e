"""Errors of the API, in the shape that OpenAI's clients read."""

from __future__ import annotations

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


def refusal_body(refused: RefusedError) -> dict[str, Any]:
    """What `agent_r1.web` refuses, in this shape."""
    return ApiError(refused.message, status=refused.status, code=refused.kind).body
