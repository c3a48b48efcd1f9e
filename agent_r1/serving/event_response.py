"""The response of server-sent events (extra `serve`): written as they come, until the client hangs up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agent_r1.openai_api import ApiError, error_event
from agent_r1.serving.events import Reserved
from agent_r1.web import CLIENT_DISCONNECTED

_LAST_SECONDS = 2.0
"""How long the end of a stream may take to be sent."""

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class EventStream(Response):
    """A response whose body is a generator of events. The generator is closed when the client hangs up.

    An `ApiError` after the first event becomes an event, because the status has been sent.
    """

    def __init__(self, stream: Reserved, *, seconds: float, on_end: Callable[[int], None]) -> None:
        """`seconds` is the deadline; `on_end` is called once, with the status that the request ended with."""
        self.status_code = 200
        self.background = None
        self._stream = stream
        self._seconds = seconds
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        task = asyncio.current_task()
        assert task is not None
        has_left = False

        async def watch() -> None:
            nonlocal has_left
            while (await receive())["type"] != "http.disconnect":
                pass
            has_left = True
            task.cancel()

        watcher = asyncio.create_task(watch())
        status = 500
        try:
            status = await self._send_events(send)
        except asyncio.CancelledError:
            if not has_left:  # the server is stopping
                raise
            task.uncancel()
            status = CLIENT_DISCONNECTED
        finally:
            watcher.cancel()
            self._stream.resources.close()
            self._on_end(status)

    async def _send_events(self, send: Send) -> int:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        try:
            async with asyncio.timeout(self._seconds), aclosing(self._stream.events) as events:
                async for event in events:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            failure = None
        except ApiError as error:
            failure = error
        except TimeoutError:
            failure = deadline_error(self._seconds)
        last = b"" if failure is None else error_event(failure.body)
        with suppress(TimeoutError):  # of a client that does not read
            async with asyncio.timeout(_LAST_SECONDS):
                await send({"type": "http.response.body", "body": last})
        return 200 if failure is None else failure.status


def deadline_error(seconds: float) -> ApiError:
    """The request took too long."""
    message = f"the request was not answered in {seconds:g} s, the limit of this server"
    return ApiError(message, status=504, code="deadline")
