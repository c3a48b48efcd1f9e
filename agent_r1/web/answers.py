"""Reading the answer of a server that we ask: up to a size, so that one that never stops sending cannot fill the memory
of a run."""

from __future__ import annotations

from collections.abc import AsyncIterator

MAX_ANSWER = 256 << 20
"""Bytes; the log-probabilities of the longest completion are a few million."""


class AnswerTooLargeError(ValueError):
    """A server sent more than is read."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"the answer is larger than {max_bytes / (1 << 20):g} MB")


async def read_answer(chunks: AsyncIterator[bytes], *, max_bytes: int = MAX_ANSWER) -> bytes:
    """All of an answer that comes in chunks; `AnswerTooLargeError` as soon as it is larger than `max_bytes`."""
    content = bytearray()
    async for chunk in chunks:
        content += chunk
        if len(content) > max_bytes:
            raise AnswerTooLargeError(max_bytes)
    return bytes(content)


async def read_lines(chunks: AsyncIterator[bytes], *, max_bytes: int = MAX_ANSWER) -> AsyncIterator[str]:
    """The lines of an answer that comes in chunks, as they come; `AnswerTooLargeError` for one that has no end."""
    begun, size = list[bytes](), 0
    async for chunk in chunks:
        if b"\n" in chunk:
            *lines, chunk = b"".join((*begun, chunk)).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace").rstrip("\r")
            begun, size = [], 0
        begun.append(chunk)
        size += len(chunk)
        if size > max_bytes:
            raise AnswerTooLargeError(max_bytes)
    if size:
        yield b"".join(begun).decode(errors="replace")
