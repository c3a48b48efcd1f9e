"""Answers of servers are read up to a size, whatever the server sends; each client says so in one line."""

from __future__ import annotations

import asyncio
import gzip
import re
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_r1.engines.http.client import ServerClient, ServerError, make_http
from agent_r1.engines.openai.servers import Servers, ServerSettings
from agent_r1.envs.remote.client import RemoteEnv
from agent_r1.errors import EngineError, EnvServerError
from agent_r1.types import Task
from agent_r1.web import (
    AnswerEncodingError,
    AnswerTooLargeError,
    UnknownCharsetError,
    answers,
    decode_answer,
    read_answer,
    read_lines,
    unpacked,
)


async def in_chunks(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def lines_of(*chunks: bytes, content_type: str | None = None, max_bytes: int = 1000) -> list[str]:
    async def collect() -> list[str]:
        return [line async for line in read_lines(in_chunks(*chunks), content_type=content_type, max_bytes=max_bytes)]

    return asyncio.run(collect())


def test_an_answer_is_read_up_to_its_bound() -> None:
    assert asyncio.run(read_answer(in_chunks(b"ab", b"cd"), max_bytes=4)) == b"abcd"
    with pytest.raises(AnswerTooLargeError, match="larger than 4 MB"):
        asyncio.run(read_answer(in_chunks(*[b"x" * (1 << 20)] * 5), max_bytes=4 << 20))


def test_lines_come_whole_wherever_they_are_cut() -> None:
    assert lines_of(b"data: 1\r\nda", b"ta: \xc3", b"\xa9\n\ndata", b": 3") == ["data: 1", "data: é", "", "data: 3"]
    with pytest.raises(AnswerTooLargeError):
        lines_of(*[b"x" * 100] * 20)
    assert len(lines_of(*[b"x" * 99 + b"\n"] * 20)) == 20, "only a line is bounded, not the stream"


def test_a_line_ends_with_a_carriage_return_a_line_feed_or_both() -> None:
    assert lines_of(b"data: 1\r\rdata: 2\r\n\ndata: 3\n") == ["data: 1", "", "data: 2", "", "data: 3"]
    assert lines_of(b"data: 1\r", b"\ndata: 2\r", b"\n", b"\r", b"\r\n") == ["data: 1", "data: 2", "", ""]
    assert lines_of("a\x0bb\x85c\u2028d\n".encode()) == ["a\x0bb\x85c\u2028d"], "what JSON may contain ends no line"


def test_a_line_that_ends_in_a_carriage_return_does_not_wait_for_more() -> None:
    async def next_lines() -> list[str]:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"data: 1\r\r"
            await asyncio.sleep(60)

        lines = read_lines(chunks())
        return [await asyncio.wait_for(anext(lines), 5) for _ in range(2)]

    assert asyncio.run(next_lines()) == ["data: 1", ""]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_a_long_line_in_tiny_chunks_takes_linear_time(end: bytes) -> None:
    begin = time.process_time()
    lines = lines_of(*[b"x" * 40] * 100_000, *[end] * 50_000, max_bytes=1 << 30)
    assert (len(lines[0]), len(lines)) == (4_000_000, 50_000)
    assert time.process_time() - begin < 10, "copying what has come for every chunk would be 200 GB"


@given(
    st.text(alphabet="aé€\n\r", max_size=30),
    st.lists(st.integers(0, 130), max_size=4),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "iso8859-15"]),
)
def test_the_lines_of_a_text_do_not_depend_on_its_chunks(text: str, cuts: list[int], charset: str) -> None:
    content = text.encode(charset)
    places = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    chunks = [content[first:end] for first, end in pairwise(places)]
    *expected, rest = re.split(r"\r\n|\r|\n", text)
    found = lines_of(*chunks, content_type=f"text/event-stream; charset={charset}")
    assert found == ([*expected, rest] if rest else expected)


# --- charsets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        ("é€".encode(), None),
        ("é€".encode(), "application/json"),
        ("é€".encode(), "application/json; charset="),
        ("é€".encode("utf-8-sig"), None),
        ("é€".encode("utf-16"), None),
        (b"\xfe\xff" + "é€".encode("utf-16-be"), "application/json; charset=iso-8859-1"),
        ("é€".encode("utf-32"), "application/json; charset=klingon"),
        ("é€".encode("utf-16-le"), 'application/json; charset="UTF-16LE"'),
        ("é€".encode("cp1252"), "application/json;profile=x; Charset=Windows-1252"),
    ],
)
def test_an_answer_is_decoded_as_its_byte_order_mark_or_its_header_says(content: bytes, content_type: str) -> None:
    assert decode_answer(content, content_type) == "é€"


def test_an_answer_that_cannot_be_decoded_names_the_charset_and_what_to_do() -> None:
    to_do = r"have the server answer in UTF-8, or declare the charset it uses \(Content-Type: \.\.\.; charset=\.\.\.\)"
    for charset in ("klingon", "hex", "zlib"):
        with pytest.raises(UnknownCharsetError, match=f"Content-Type declares the charset '{charset}', .*; {to_do}"):
            decode_answer(b"{}", f"application/json; charset={charset}")
    for content, content_type, told in [
        (b"caf\xe9", None, r"is not in utf-8, the charset of answers that declare none \(.*byte 0xe9 in position 3"),
        (b"caf\xe9", "text/plain; charset=US-ASCII", r"is not in us-ascii, the charset its Content-Type declares"),
        (b"\xff\xfea\x00b", "text/plain; charset=utf-8", r"is not in utf-16-le, the charset of its byte order mark"),
    ]:
        with pytest.raises(AnswerEncodingError, match=f"{told}.*; {to_do}"):
            decode_answer(content, content_type)
    with pytest.raises(AnswerEncodingError, match="is not in utf-8"):
        lines_of(b"data: 1\ndata: caf\xc3")


def test_an_error_page_is_decoded_as_well_as_it_can_be() -> None:
    assert decode_answer(b"caf\xe9", None, strict=False) == "caf\ufffd"
    assert decode_answer("café".encode(), "text/html; charset=klingon", strict=False) == "café"


# --- servers that never end ------------------------------------------------------------------------------------------


class _Endless(BaseHTTPRequestHandler):
    """Sends the beginning of a JSON text that never ends."""

    def _answer(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        try:
            while True:
                self.wfile.write(b'["' + b"x" * 65536)
        except OSError:  # the client had enough
            pass

    do_GET = do_POST = _answer

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def a_server(handler: type[BaseHTTPRequestHandler] = _Endless) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four megabytes instead of 256."""
    for function in (read_answer, read_lines):
        monkeypatch.setitem(function.__kwdefaults__, "max_bytes", 4 << 20)
    assert answers.MAX_ANSWER == 256 << 20


async def ask(client: str, url: str, *, timeout: float = 20) -> None:
    """Send one request to a server of the kind that this client is for."""
    if client == "generation":
        async with make_http() as http:
            await ServerClient(url, http).call("GET", "/version", seconds=timeout)
    elif client == "openai":
        servers = Servers([url], ServerSettings(timeout=timeout))
        try:
            await servers.post("/chat/completions", {})
        finally:
            await servers.close()
    else:
        env = RemoteEnv(url=url, retries=0, connect_seconds=timeout, read_seconds=timeout)
        try:
            await env.reset(Task(task_id="t", prompt=({"role": "user", "content": "begin"},)))
        finally:
            await env.close()


CLIENTS = ["generation", "openai", "environment"]


def test_a_generation_server_without_end_is_an_error_of_that_server() -> None:
    async def ask(url: str) -> None:
        async with make_http() as http:
            await ServerClient(url, http).call("GET", "/version", seconds=20)

    with a_server() as url, pytest.raises(ServerError, match=r"/version: the answer is larger than 4 MB"):
        asyncio.run(ask(url))


@pytest.mark.parametrize("streams", [False, True])
def test_an_openai_server_without_end_is_one_clear_error(streams: bool) -> None:
    async def ask(url: str) -> None:
        servers = Servers([url], ServerSettings())
        try:
            if streams:
                async for _ in servers.stream("/chat/completions", {}):
                    pass
            else:
                await servers.post("/chat/completions", {})
        finally:
            await servers.close()

    with a_server() as url, pytest.raises(EngineError, match="the answer is larger than 4 MB"):
        asyncio.run(ask(url))


def test_an_environment_server_without_end_is_one_clear_error() -> None:
    async def reset(url: str) -> None:
        env = RemoteEnv(url=url, retries=0)
        try:
            await env.reset(Task(task_id="t", prompt=({"role": "user", "content": "begin"},)))
        finally:
            await env.close()

    with a_server() as url, pytest.raises(EnvServerError, match="the answer is larger than 4 MB"):
        asyncio.run(reset(url))


class _Dripping(_Endless):
    """Sends a byte at a time, each within the time for one."""

    def _answer(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                self.wfile.write(b" ")
                time.sleep(0.05)
        except OSError:  # the client had enough
            pass

    do_GET = do_POST = _answer


@pytest.mark.parametrize("client", CLIENTS)
def test_a_server_that_sends_byte_after_byte_is_one_clear_error(client: str) -> None:
    async def bounded(url: str) -> None:
        async with asyncio.timeout(10):
            await ask(client, url, timeout=0.2)

    told = r"no answer in 0\.2 s|had not ended after 0\.2 s|not complete after 0\.6 s"
    with a_server(_Dripping) as url, pytest.raises((ServerError, EngineError, EnvServerError), match=told):
        asyncio.run(bounded(url))


class _Redirecting(_Endless):
    """Sends every request elsewhere."""

    def _answer(self) -> None:
        self.send_response(308)
        self.send_header("Location", "https://elsewhere.test/v1")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST = _answer


@pytest.mark.parametrize("client", CLIENTS)
def test_a_server_that_redirects_is_not_followed_and_names_the_address_to_give(client: str) -> None:
    told = "it redirects to https://elsewhere.test/v1, which is not followed; give that address"
    with a_server(_Redirecting) as url, pytest.raises((ServerError, EngineError, EnvServerError), match=told):
        asyncio.run(ask(client, url))


# --- compressed answers ----------------------------------------------------------------------------------------------


def unpack(content: bytes, encoding: str | None, *, cut: int = 1 << 16) -> bytes:
    chunks = [content[start : start + cut] for start in range(0, len(content), cut)]
    return asyncio.run(read_answer(unpacked(in_chunks(*chunks), encoding)))


@pytest.mark.parametrize("cut", [1, 2, 7, 1 << 16])
@pytest.mark.parametrize("content", [b"", b"{}", bytes(range(256)) * 4000])
def test_a_compressed_answer_is_unpacked_however_it_is_cut(content: bytes, cut: int) -> None:
    content = content[: 2000 * cut]
    raw = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    for packed, encoding in [
        (content, None),
        (content, "identity"),
        (gzip.compress(content), "gzip"),
        (gzip.compress(content), " X-GZip "),
        (zlib.compress(content), "deflate"),
        (raw.compress(content) + raw.flush(), "deflate"),
    ]:
        assert unpack(packed, encoding, cut=cut) == content


def test_a_stream_is_unpacked_as_it_comes() -> None:
    packer = zlib.compressobj(wbits=31)
    sent = [packer.compress(line) + packer.flush(zlib.Z_SYNC_FLUSH) for line in (b"data: 1\n", b"data: 2\n")]

    async def first() -> bytes:
        return await anext(unpacked(in_chunks(sent[0], b""), "gzip"))

    assert asyncio.run(first()) == b"data: 1\n"
    assert unpack(b"".join(sent), "gzip") == b"data: 1\ndata: 2\n"


def test_what_cannot_be_unpacked_is_said() -> None:
    for encoding in ("br", "gzip, gzip", "zstd"):
        with pytest.raises(AnswerEncodingError, match=f"Content-Encoding is '{encoding}', and gzip, deflate were off"):
            unpack(b"{}", encoding)
    packed = gzip.compress(bytes(range(256)))
    for content in (packed[:-8] + b"\0" * 8, packed[:10] + b"\xff" * 20, b"{}" * 20):
        with pytest.raises(AnswerEncodingError, match=r"cannot be unpacked .*it was damaged"):
            unpack(content, "gzip")


def bomb(encoding: str) -> dict[str, Any]:
    """A handler of a small answer that unpacks to much: 64 MB, or where it is packed twice, 4 GB."""
    packed = gzip.compress(b"x" * (64 << 20), compresslevel=1)
    if encoding == "gzip, gzip":
        packed = gzip.compress(packed * 64)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Encoding", encoding)
        handler.send_header("Content-Length", str(len(packed)))
        handler.end_headers()
        with suppress(OSError):  # the client had enough
            handler.wfile.write(packed)

    return {"do_GET": answer, "do_POST": answer}


@pytest.mark.parametrize("encoding", ["gzip", "gzip, gzip"])
@pytest.mark.parametrize("client", CLIENTS)
def test_an_answer_that_unpacks_to_much_is_one_clear_error(client: str, encoding: str) -> None:
    told = "larger than 4 MB" if encoding == "gzip" else "Content-Encoding is 'gzip, gzip'"
    tracemalloc.start()
    try:
        with a_server(type("_Bomb", (_Endless,), bomb(encoding))) as url:
            tracemalloc.reset_peak()
            with pytest.raises((ServerError, EngineError, EnvServerError), match=told):
                asyncio.run(ask(client, url))
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()
