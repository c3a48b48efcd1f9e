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
    rest = bytearray()
    async for chunk in chunks:
        rest += chunk
        *lines, last = rest.split(b"\n") if b"\n" in chunk else [rest]
        for line in lines:
            yield line.decode(errors="replace").rstrip("\r")
        rest = bytearray(last)
        if len(rest) > max_bytes:
            raise AnswerTooLargeError(max_bytes)
    if rest:
        yield rest.decode(errors="replace")
