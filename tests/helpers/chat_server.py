"""An OpenAI-compatible server in a thread that answers what a test says, faults included."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Any
"""`(status, text)` or `(status, text, headers)`, where the text may be bytes; a list of stream events; a dict, which is
a whole answer; `CUT`, half an answer; `SILENCE`, none in time."""

CUT = "half a body"
SILENCE = "no answer"


def answer(content: str = "", calls: Sequence[tuple[str, str]] = (), **more: Any) -> dict[str, Any]:
    """A whole answer; calls are names with their arguments as JSON text."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, (name, arguments) in enumerate(calls)
        ]
    reason = "tool_calls" if calls else "stop"
    return {"choices": [{"index": 0, "message": message, "finish_reason": reason}], **more}


class ChatServer(ThreadingHTTPServer):
    """Records requests. `replies` are given in order, one per request; or `reply` decides from the request's body."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.replies: list[Reply] = []
        self.reply: Callable[[dict[str, Any]], Reply] | None = None
        self.models: Reply = {"data": [{"id": "tiny"}]}
        self.lock = threading.Lock()
        self.num_open = self.most_open = 0
        self.silence = threading.Event()

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """Of the requests, in order."""
        return [body for _, _, body in self.requests]

    def next_reply(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> Reply:
        """The reply to a request, which is recorded."""
        with self.lock:
            self.requests.append((path, headers, body))
            if self.reply is None:
                return self.replies.pop(0)
        return self.reply(body)


class _Handler(BaseHTTPRequestHandler):
    server: ChatServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._give(self.server.models)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.num_open += 1
            self.server.most_open = max(self.server.most_open, self.server.num_open)
        try:
            reply = self.server.next_reply(self.path, dict(self.headers), body)
        finally:
            with self.server.lock:
                self.server.num_open -= 1
        self._give(reply)

    def _give(self, reply: Reply) -> None:
        if reply == SILENCE:
            self.server.silence.wait(20)
            self.close_connection = True
        elif reply == CUT:
            self._answer(200, '{"choices": [', {"Content-Length": "5000"})
            self.close_connection = True
        elif isinstance(reply, tuple):
            status, text, *headers = reply
            self._answer(status, text, *headers)
        elif isinstance(reply, dict):
            self._answer(200, json.dumps(reply))
        else:
            events = [entry if isinstance(entry, str) else json.dumps({"choices": [entry]}) for entry in reply]
            self._answer(200, "".join(f"data: {event}\n\n" for event in events), {"Content-Type": "text/event-stream"})

    def _answer(self, status: int, text: str | bytes, headers: dict[str, str] | None = None) -> None:
        data = text if isinstance(text, bytes) else text.encode()
        own = {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}
        self.send_response(status)
        for name, value in own.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Quiet."""


@contextmanager
def chat_server() -> Iterator[ChatServer]:
    """A running server."""
    running = ChatServer()
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield running
    finally:
        running.silence.set()
        running.shutdown()
        thread.join()
        running.server_close()


def slowly(reply: Reply, seconds: float = 0.02) -> Callable[[dict[str, Any]], Reply]:
    """A `reply` that takes its time, so that requests overlap."""

    def wait(body: dict[str, Any]) -> Reply:
        time.sleep(seconds)
        return reply

    return wait
