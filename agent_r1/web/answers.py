"""Reading the answer of a server that we ask: up to a size, so that one that never stops sending cannot fill the memory
of a run; and decoded as its byte order mark says, else the charset of its Content-Type, else as UTF-8."""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator, Mapping
from email.message import Message

MAX_ANSWER = 256 << 20
"""Bytes; the log-probabilities of the longest completion are a few million."""

_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32-le",  # before UTF-16's, with which it begins
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
_TO_DO = "have the server answer in UTF-8, or declare the charset it uses (Content-Type: ...; charset=...)"


class AnswerTooLargeError(ValueError):
    """A server sent more than is read."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"the answer is larger than {max_bytes / (1 << 20):g} MB")


class AnswerEncodingError(ValueError):
    """An answer is not in its charset."""


class UnknownCharsetError(AnswerEncodingError):
    """A server declares a charset that Python does not know."""


def redirection(status: int, headers: Mapping[str, str]) -> str | None:
    """Where an answer redirects to, and what to do; None for other answers.

    Redirections are not followed: a request and its key are for the server that was named.

    >>> redirection(308, {"Location": "https://a.com/v1"})
    'it redirects to https://a.com/v1, which is not followed; give that address'
    """
    place = next((value for name, value in headers.items() if name.lower() == "location"), None)
    if not 300 <= status < 400 or place is None:
        return None
    return f"it redirects to {place:.300}, which is not followed; give that address"


async def read_answer(chunks: AsyncIterator[bytes], *, max_bytes: int = MAX_ANSWER) -> bytes:
    """All of an answer that comes in chunks; `AnswerTooLargeError` as soon as it is larger than `max_bytes`."""
    content = bytearray()
    async for chunk in chunks:
        content += chunk
        if len(content) > max_bytes:
            raise AnswerTooLargeError(max_bytes)
    return bytes(content)


def decode_answer(content: bytes, content_type: str | None, *, strict: bool = True) -> str:
    """The text of an answer with this Content-Type. Without `strict` there is no `AnswerEncodingError`: what cannot be
    decoded is replaced.

    >>> decode_answer("café".encode("latin-1"), "text/html; charset=latin-1")
    'café'
    """
    return _Decoder(content_type, strict=strict).decode(content, final=True)


async def read_lines(
    chunks: AsyncIterator[bytes], *, content_type: str | None = None, max_bytes: int = MAX_ANSWER
) -> AsyncIterator[str]:
    """The lines of an answer that comes in chunks, as they come; `AnswerTooLargeError` for one that has no end.

    A line ends with a carriage return, a line feed, or both, as in server-sent events.
    """
    decoder = _Decoder(content_type)
    parts, size, was_return = list[str](), 0, False
    async for chunk in chunks:
        text = decoder.decode(chunk)
        size += len(chunk)
        if text:
            ended, was_return = was_return, text.endswith("\r")
            text = text.removeprefix("\n") if ended else text  # the line has been given already
        *lines, text = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        if lines:
            yield "".join((*parts, lines[0]))
            for line in lines[1:]:
                yield line
            parts, size = [], len(text)
        parts.append(text)
        if size > max_bytes:
            raise AnswerTooLargeError(max_bytes)
    parts.append(decoder.decode(b"", final=True))
    if any(parts):
        yield "".join(parts)


class _Decoder:
    """Decodes an answer that comes in chunks."""

    def __init__(self, content_type: str | None, *, strict: bool = True) -> None:
        self._declared = _charset_of(content_type)
        self._strict = strict
        self._begun = b""
        """What came before the charset was clear: a part of a byte order mark."""
        self._charset = ""
        self._source = ""
        self._decoder: codecs.IncrementalDecoder | None = None

    def decode(self, chunk: bytes, *, final: bool = False) -> str:
        """The next text. Raises `AnswerEncodingError`."""
        if self._decoder is None:
            chunk = self._begun + chunk
            if not final and any(mark.startswith(chunk) for mark in _MARKS):
                self._begun = chunk
                return ""
            mark = next((mark for mark in _MARKS if chunk.startswith(mark)), b"")
            chunk = chunk[len(mark) :]
            self._decoder = self._make(mark)
        try:
            return self._decoder.decode(chunk, final)
        except UnicodeError as error:
            raise AnswerEncodingError(
                f"the answer is not in {self._charset}, the charset {self._source} ({error!s:.200}); {_TO_DO}"
            ) from None

    def _make(self, mark: bytes) -> codecs.IncrementalDecoder:
        if mark:
            self._charset, self._source = _MARKS[mark], "of its byte order mark"
        elif self._declared and (self._strict or _is_charset(self._declared)):
            self._charset, self._source = self._declared, "its Content-Type declares"
        else:
            self._charset, self._source = "utf-8", "of answers that declare none"
        if not _is_charset(self._charset):
            raise UnknownCharsetError(
                f"the answer's Content-Type declares the charset {self._charset!r:.60}, which is unknown; {_TO_DO}"
            )
        return codecs.getincrementaldecoder(self._charset)("strict" if self._strict else "replace")


def _charset_of(content_type: str | None) -> str | None:
    """The charset of a Content-Type, in lower case.

    >>> _charset_of('application/json; charset="UTF-16"')
    'utf-16'
    """
    message = Message()
    message["Content-Type"] = content_type or ""
    return message.get_content_charset()


def _is_charset(name: str) -> bool:
    """Whether there is such an encoding of text; Python's codecs for bytes (`hex`, `zlib`) are none.

    >>> _is_charset("latin-1"), _is_charset("zlib")
    (True, False)
    """
    try:
        "{".encode(name)
        codecs.getincrementaldecoder(name)
    except (LookupError, ValueError):
        return False
    return True
