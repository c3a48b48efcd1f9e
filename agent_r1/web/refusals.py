"""A refused request: what the client did, and the status of the response."""

from __future__ import annotations

from typing import Any


class RefusedError(Exception):
    """A request that is refused, with the status of the response and the kind of the refusal in one word.

    A server writes it in the shape of its own API; `body` is the shape of the environment server.
    """

    def __init__(self, status: int, kind: str, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.traceback = traceback

    @property
    def body(self) -> dict[str, Any]:
        """The refusal as a JSON object."""
        return {"error": {"kind": self.kind, "message": self.message, "traceback": self.traceback}}
