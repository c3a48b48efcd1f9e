"""A real server of `agent-r1 view` on loopback, in a thread, and a client that says exactly what it is told to."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_r1.view import Catalog, ViewApi
from agent_r1.view.server import create_app
from agent_r1.web import Access, listen, running_server


@dataclass(frozen=True)
class Answer:
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body.decode("ascii"))


@dataclass(frozen=True)
class ViewServer:
    """A running server."""

    url: str
    api: ViewApi

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def request(self, path: str, *, method: str = "GET", **headers: str) -> Answer:
        """Send one request; `origin="http://x"` is the header Origin."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.putrequest(method, path, skip_host="host" in headers)
            for name, value in headers.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders()
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """The JSON at a path that must be there."""
        answer = self.request(path)
        assert answer.status == 200, answer.body
        return answer.json

    @contextmanager
    def events(self, path: str, **headers: str) -> Iterator[Iterator[tuple[str, str, Any]]]:
        """The events of a stream as (event, id, data)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        try:
            yield _parse_events(answer)
        finally:
            connection.close()


def _parse_events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, str, Any]]:
    fields: dict[str, str] = {}
    while line := answer.readline():
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        elif "data" in fields:
            yield fields.get("event", "message"), fields.get("id", ""), json.loads(fields["data"])
            fields = {}


@contextmanager
def view_server(folders: Sequence[Path], access: Access | None = None) -> Iterator[ViewServer]:
    """A server on some folders, for the time of the block."""
    api = ViewApi(Catalog(folders))
    started: list[str] = []
    ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with running_server(create_app(api, access), listen("127.0.0.1", 0), shutdown_seconds=1) as url:
            started.append(url)
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(60)
        yield ViewServer(started[0], api)
    finally:
        stop.set()
        thread.join(30)
