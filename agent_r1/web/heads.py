"""Requests whose head has no end are refused.

The parser that uvicorn prefers keeps what it has of a head, however long it is, before any key is asked for: one client
could fill the memory in seconds. Its other one (h11) has a limit.
"""

from __future__ import annotations

from typing import Any

MAX_HEAD = 1 << 16
"""Bytes of the first line and the headers of a request, or of what follows the last part of its body."""

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


def with_limited_heads(protocol: type) -> type:
    """The protocol of uvicorn with a limit on the head of a request."""
    if not hasattr(protocol, "on_headers_complete"):
        return protocol

    class LimitedHeads(protocol):  # type: ignore[misc]
        """Counts the bytes that were neither a whole head nor a part of a body."""

        _num_pending = 0

        def data_received(self, data: bytes) -> None:
            """Parse what has come; close the connection when too much of it is pending."""
            self._num_pending += len(data)
            super().data_received(data)
            transport: Any = self.transport
            if self._num_pending > MAX_HEAD and not transport.is_closing():
                if self.cycle is None or self.cycle.response_complete:
                    transport.write(_TOO_LARGE)
                transport.close()

        def on_headers_complete(self) -> None:
            """Note that the head of a request is complete."""
            self._num_pending = 0
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            """A part of the body, whose size is limited where it is read."""
            self._num_pending = 0
            super().on_body(body)

        def on_message_complete(self) -> None:
            """Note that a request is complete."""
            self._num_pending = 0
            super().on_message_complete()

    return LimitedHeads
