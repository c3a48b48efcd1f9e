"""The texts of single tokens, and the content of a turn while its text arrives (from a `TextStream`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from agent_r1.chat.renderer import ChatRenderer

_UNFINISHED = "\ufffd"


class TokenTexts:
    """The texts and bytes of single tokens, computed once each."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, tuple[str, bytes]] = {}

    def of(self, token_id: int) -> tuple[str, bytes]:
        """Text and bytes. The text of a token that is a part of a character contains a replacement character."""
        entry = self._known.get(token_id)
        if entry is None:
            anchor, anchor_text = self._anchor
            text = self._decode([*anchor, token_id])[len(anchor_text) :]
            entry = self._known[token_id] = text, _raw_bytes(self._tokenizer, token_id, text)
        return entry

    @cached_property
    def _anchor(self) -> tuple[list[int], str]:
        """Some tokenizers drop the space before the first word of a text: tokens are decoded after this one."""
        anchor = [int(token_id) for token_id in self._tokenizer.encode("a", add_special_tokens=False)[-1:]]
        return anchor, self._decode(anchor)

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))


def _raw_bytes(tokenizer: Any, token_id: int, text: str) -> bytes:
    """The bytes of a token; of one that is a part of a character, from its name in the vocabulary."""
    if _UNFINISHED not in text:
        return text.encode("utf-8", "replace")
    name = str(tokenizer.convert_ids_to_tokens(token_id))
    if name.startswith("<0x") and name.endswith(">"):  # SentencePiece: one token per byte
        return bytes([int(name[3:-1], 16)])
    table = _byte_of_letter()  # byte-level BPE: one letter per byte
    return bytes(table[letter] for letter in name) if all(letter in table for letter in name) else text.encode()


def _byte_of_letter() -> dict[str, int]:
    """Byte-level BPE writes printable bytes as themselves and the others as letters from 256 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {**{chr(byte): byte for byte in printable}, **{chr(256 + n): byte for n, byte in enumerate(others)}}


class ContentStream:
    """The part of a turn's text that is certainly content, as the text arrives.

    Text from where a call or a stop text may begin is kept back, and so are spaces at the end, which are not part of
    the content before a call. `rest` gives what is missing when the turn is parsed.

    >>> stream = ContentStream(openings=("<call>",), stop=("END",))
    >>> stream.push("Hm, 1 < 2. <ca"), stream.push("ke> E"), stream.push("x <call>{}")
    ('Hm, 1 < 2.', ' <cake>', ' Ex')
    >>> stream.rest("Hm, 1 < 2. <cake> Ex")
    ''
    """

    def __init__(self, *, openings: Sequence[str] | None = (), stop: Sequence[str] = ()) -> None:
        """`openings` are the texts with which calls begin; None: nothing is certain before the end."""
        self._openings = openings
        self._stop = tuple(stop)
        self._pending = ""
        self._is_open = openings is not None
        self._sent: list[str] = []

    def push(self, text: str) -> str:
        """The content that is certain with this text."""
        if not self._is_open:
            return ""
        self._pending += text
        end = self._certain_end()
        certain = self._pending[:end]
        if self._openings:
            certain = certain.rstrip()
        self._pending = self._pending[len(certain) :]
        self._sent.append(certain)
        return certain

    def _certain_end(self) -> int:
        end = len(self._pending)
        for mark in self._openings or ():
            start = self._pending.find(mark)
            if start >= 0:
                end, self._is_open = min(end, start), False
        for mark in (*(self._openings or ()), *self._stop):
            end = min(end, _beginning_at_end(self._pending, mark))
        return end

    def rest(self, content: str) -> str:
        """What is missing of the content of the whole turn."""
        whole = "".join(self._sent)
        return content.removeprefix(whole if content.startswith(whole) else whole.lstrip())


def _beginning_at_end(text: str, mark: str) -> int:
    """The index at which the end of a text may be the beginning of a mark; the length of the text if it is none.

    >>> _beginning_at_end("a <to", "<tool>"), _beginning_at_end("a", "<tool>")
    (2, 1)
    """
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return len(text) - length
    return len(text)


def content_stream(renderer: ChatRenderer, *, has_tools: bool, stop: Sequence[str] = ()) -> ContentStream:
    """The stream for turns that the renderer's format parses; without tools all text is content."""
    if getattr(renderer.format, "rewrites_text", False):
        return ContentStream(openings=None, stop=stop)
    return ContentStream(openings=getattr(renderer.format, "call_openings", None) if has_tools else (), stop=stop)
