"""Connections on which no whole request head arrives in time are closed.

Who sends half of one and waits holds a file descriptor of the server, before any key is asked for; some hundreds of
such connections, and no other client gets one. The server itself has a time limit between two requests alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

HEAD_SECONDS = 20.0
"""How long a client may take for the first line and the headers of a request."""
TICKS = 5
"""Connections are looked at once in so many ticks of the server, which ticks ten times per second."""


class HeadDeadline:
    """Closes the overdue ones among a server's connections."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting: dict[Any, tuple[Any, float]] = {}
        """The connections that wait for a request: the request before, which tells a new wait from the same one, and
        since when."""

    def close_overdue(self, connections: Iterable[Any], now: float) -> None:
        """Close the connections that have waited for too long; `now` in seconds."""
        waiting: dict[Any, tuple[Any, float]] = {}
        for connection in connections:
            request = connection.cycle
            if request is not None and not request.response_complete:
                continue
            entry = self._waiting.get(connection)
            since = entry[1] if entry is not None and entry[0] is request else now
            if now - since < self._seconds:
                waiting[connection] = (request, since)
            else:
                connection.transport.close()
        self._waiting = waiting
