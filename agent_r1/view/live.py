"""Server-sent events of a run that is being written: new lines of metrics, counts, warnings and its state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from agent_r1.codec import write_json
from agent_r1.view.api import ViewApi
from agent_r1.view.run import ViewedRun
from agent_r1.web import RefusedError

POLL_SECONDS = 0.5
BEAT_SECONDS = 15.0
MAX_STREAMS = 64
_MAX_LINES = 2_000
"""Lines of one event."""


class LiveStreams:
    """The open streams of a server."""

    def __init__(self, api: ViewApi) -> None:
        self._api = api
        self._open = 0
        self._is_closing = False

    def close(self) -> None:
        """End all streams: a server that stops waits for its answers."""
        self._is_closing = True

    async def open(self, run_id: str, since: str | None, last_id: str | None) -> AsyncIterator[str]:
        """The events of a run, from its line `since` on."""
        run = await asyncio.to_thread(self._api.run, run_id)
        text = last_id or since or "0"
        if not (text.isascii() and text.isdigit() and len(text) < 16):
            raise RefusedError(400, "bad_request", f"since={text!r:.60} is not a number of lines")
        watch = _Watch(run, int(text))

        def news() -> list[str]:
            self._api.indexer.touch(run)
            return watch.news()

        return self._events(news)

    def open_all(self) -> AsyncIterator[str]:
        """The runs that changed, without end; at first all of them."""
        last_sent: dict[str, Any] = {}

        def news() -> list[str]:
            changed = [run for run in self._api.runs()["runs"] if last_sent.get(run["id"]) != run]
            last_sent.update({run["id"]: run for run in changed})
            return [f"data: {write_json({'runs': changed}, default=str)}\n\n"] if changed else []

        return self._events(news)

    def _events(self, news: Callable[[], list[str]]) -> AsyncIterator[str]:
        if self._open >= MAX_STREAMS:
            raise RefusedError(503, "full", f"{MAX_STREAMS} streams are open; close some pages")
        return self._poll(news)

    async def _poll(self, news: Callable[[], list[str]]) -> AsyncIterator[str]:
        self._open += 1
        try:
            quiet = 0.0
            while not self._is_closing:
                events = await asyncio.to_thread(news)
                for event in events:
                    yield event
                quiet = 0.0 if events else quiet + POLL_SECONDS
                if quiet >= BEAT_SECONDS:
                    yield ": beat\n\n"
                    quiet = 0.0
                await asyncio.sleep(POLL_SECONDS)
        finally:
            self._open -= 1


class _Watch:
    """What one client has been told."""

    def __init__(self, run: ViewedRun, since: int) -> None:
        self._run = run
        self._since = since
        self._rewrites = run.rewrites
        self._told: dict[str, Any] = {}

    def news(self) -> list[str]:
        """The events since the last call."""
        return [
            *self._metrics(),
            *self._changed("state", self._state),
            *self._changed("warnings", self._warnings),
            *self._changed("trajectories", self._counts),
        ]

    def _metrics(self) -> list[str]:
        lines, _ = self._run.lines()
        is_rewritten = self._run.rewrites != self._rewrites or self._since > len(lines)
        if is_rewritten:
            self._since, self._rewrites = 0, self._run.rewrites
        events = []
        while is_rewritten or self._since < len(lines):
            lines_to_send = lines[self._since : self._since + _MAX_LINES]
            self._since += len(lines_to_send)
            data = {"lines": lines_to_send, "rewritten": is_rewritten, "total": self._since}
            events.append(self._event("metrics", data))
            is_rewritten = False
        return events

    def _changed(self, name: str, current: Callable[[], dict[str, Any]]) -> list[str]:
        data = current()
        if self._told.get(name) == data:
            return []
        self._told[name] = data
        return [self._event(name, data)]

    def _state(self) -> dict[str, Any]:
        return {"state": self._run.state}

    def _warnings(self) -> dict[str, Any]:
        return {"warnings": self._run.warnings()}

    def _counts(self) -> dict[str, Any]:
        state = self._run.index.state
        return {
            "trajectories": state.trajectories,
            "indexed": state.complete,
            "index_progress": round(state.progress, 3),
            "corrupt_lines": state.corrupt_lines,
        }

    def _event(self, name: str, data: dict[str, Any]) -> str:
        return f"event: {name}\nid: {self._since}\ndata: {write_json(data, default=str)}\n\n"
