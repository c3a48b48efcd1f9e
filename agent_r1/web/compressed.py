"""Unpacking compressed answers piece by piece: a few kilobytes can unpack to gigabytes, and an answer is read up to a
size that counts what it unpacks to."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from agent_r1.web.answers import AnswerEncodingError

ACCEPTED = "gzip, deflate"
"""The header `Accept-Encoding` of requests whose answers are unpacked here."""

_PIECE = 1 << 18
_GZIP = zlib.MAX_WBITS | 16


async def unpacked(chunks: AsyncIterator[bytes], content_encoding: str | None) -> AsyncIterator[bytes]:
    """The chunks of an answer with this Content-Encoding, unpacked to pieces of limited size.

    Raises `AnswerEncodingError` for an encoding that was not asked for, several ones included, and for damaged content.
    """
    encoding = (content_encoding or "").strip().lower()
    if encoding in ("", "identity"):
        async for chunk in chunks:
            yield chunk
        return
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise AnswerEncodingError(
            f"the answer's Content-Encoding is {encoding!r:.60}, and {ACCEPTED} were offered; have the server send it "
            "as it is"
        )
    unpacker = _Unpacker(is_gzip=encoding != "deflate")
    async for chunk in chunks:
        for piece in unpacker.unpack(chunk):
            yield piece
            await asyncio.sleep(0)  # what unpacks to much must not hold up others


class _Unpacker:
    """Unpacks gzip and deflate; the latter is sent with zlib's header, and by some servers without one."""

    def __init__(self, *, is_gzip: bool) -> None:
        self._is_gzip = is_gzip
        self._begun = b""
        self._zlib: Any = None

    def unpack(self, chunk: bytes) -> Iterator[bytes]:
        """The pieces of what a chunk unpacks to."""
        if self._zlib is None:
            chunk = self._begun = self._begun + chunk
            if len(chunk) < 2:
                return
            self._zlib = zlib.decompressobj(_GZIP if self._is_gzip else _format_of(chunk))
        while not self._zlib.eof:
            try:
                piece = self._zlib.decompress(chunk, _PIECE)
            except zlib.error as error:
                raise AnswerEncodingError(f"the answer cannot be unpacked ({error}): it was damaged") from None
            if piece:
                yield piece
            chunk = self._zlib.unconsumed_tail
            if not chunk and len(piece) < _PIECE:
                return


def _format_of(head: bytes) -> int:
    """What zlib calls the format of deflated content with these first two bytes."""
    has_header = head[0] & 15 == zlib.DEFLATED and int.from_bytes(head[:2]) % 31 == 0
    return zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS
