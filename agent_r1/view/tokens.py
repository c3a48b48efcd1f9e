"""The text of every token and who wrote it, from a tokenizer.json that is on this machine. No torch, no network.

Only the vocabulary is read. Byte-level tokenizers write bytes as letters of an alphabet of their own, those like
SentencePiece write blanks as a mark and unknown bytes as `<0x0A>`. A character of several tokens belongs to the last.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from agent_r1.errors import DataError
from agent_r1.view.index.scan import message_text
from agent_r1.view.inside import Signature, open_inside, signature_of

_FILE = "tokenizer.json"
_MAX_BYTES = 128 << 20
_MAX_LOADED = 4
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "\u2581"


class TokenTexts:
    """The texts of a vocabulary."""

    def __init__(self, vocabulary: Mapping[int, bytes]) -> None:
        self._vocabulary = vocabulary

    def split(self, ids: Sequence[int]) -> list[str]:
        """The text of each id; together they are the text of all of them."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        texts = [decoder.decode(self._vocabulary.get(token, b"\xef\xbf\xbd")) for token in ids]
        rest = decoder.decode(b"", True)
        if texts:
            texts[-1] += rest
        return texts


def writers_of(texts: Sequence[str], messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Who wrote each token of a prompt: the message whose content it is part of, else the chat template.

    >>> writers_of(["<user>", "hi ", "you", "<end>"], [{"role": "user", "content": "hi you"}])
    ['template', 'user', 'user', 'template']
    """
    whole = "".join(texts)
    spans: list[tuple[int, int, str]] = []
    position = 0
    for content, writer in ((content, writer_of(message)) for message in messages for content in _texts(message)):
        for candidate in (content, content.strip()):
            place = whole.find(candidate, position) if candidate else -1
            if place >= 0:
                position = place + len(candidate)
                spans.append((place, position, writer))
                break
    writers, start, current = [], 0, 0
    for text in texts:
        end = start + len(text)
        while current < len(spans) and spans[current][1] <= start:
            current += 1
        inside = current < len(spans) and spans[current][0] < max(end, start + 1)
        writers.append(spans[current][2] if inside else "template")
        start = end
    return writers


def writer_of(message: Mapping[str, Any]) -> str:
    """Who wrote a message: model, tool or user."""
    return _WRITERS.get(str(message.get("role")), "user")


def _texts(message: Mapping[str, Any]) -> list[str]:
    """The texts of a message as they stand in a prompt: images may be between them."""
    content = message.get("content")
    if not isinstance(content, list):
        return [message_text(message)]
    return [message_text({"content": [part]}) for part in content]


_WRITERS = {"tool": "tool", "function": "tool", "assistant": "model"}


def find_tokenizer(folder: Path, model: str) -> TokenTexts | None:
    """The tokenizer of a run: of its exported model, else of the model it started from where that is on this machine.

    A name of the Hugging Face hub is looked up in the local cache only.
    """
    with suppress(FileNotFoundError, DataError), open_inside(folder, "hf", _FILE) as file:
        tokenizer = _from_file(file, str(folder))
        if tokenizer is not None:
            return tokenizer
    places = [Path(model) / _FILE, *_cached_files(model)] if model and model != "?" else []
    for place in places:
        with suppress(OSError, ValueError), place.open("rb") as file:
            tokenizer = _from_file(file, str(place))
            if tokenizer is not None:
                return tokenizer
    return None


def _cached_files(model: str) -> list[Path]:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        file = try_to_load_from_cache(model, _FILE)
    except (HFValidationError, OSError):
        return []
    return [Path(file)] if isinstance(file, str) else []


_loaded: dict[str, tuple[Signature, TokenTexts | None]] = {}


def _from_file(file: BinaryIO, place: str) -> TokenTexts | None:
    """The vocabulary of an open tokenizer.json, read once; None when it cannot be used."""
    signature = signature_of(file)
    if place not in _loaded or _loaded[place][0] != signature:
        if len(_loaded) >= _MAX_LOADED:
            _loaded.clear()
        texts = None
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            if signature.size <= _MAX_BYTES:
                texts = TokenTexts(_vocabulary(json.loads(file.read(_MAX_BYTES))))
        _loaded[place] = (signature, texts)
    return _loaded[place][1]


def _vocabulary(description: Mapping[str, Any]) -> dict[int, bytes]:
    entries = description["model"]["vocab"]
    pairs = entries.items() if isinstance(entries, dict) else ((entry[0], i) for i, entry in enumerate(entries))
    as_bytes = _byte_level if '"ByteLevel"' in json.dumps(description.get("decoder")) else _sentence_piece
    vocabulary = {int(number): as_bytes(str(token)) for token, number in pairs}
    for added in description.get("added_tokens") or []:
        vocabulary[int(added["id"])] = str(added["content"]).encode("utf-8", "replace")
    return vocabulary


def _byte_alphabet() -> dict[str, int]:
    """Printable bytes are their own letters; the others follow after the first 256 code points."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    return letters | {chr(256 + index): byte for index, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _byte_level(token: str) -> bytes:
    """
    >>> _byte_level("\u0120the")
    b' the'
    """
    if all(letter in _ALPHABET for letter in token):
        return bytes(_ALPHABET[letter] for letter in token)
    return token.encode("utf-8", "replace")


def _sentence_piece(token: str) -> bytes:
    """
    >>> _sentence_piece("\u2581the"), _sentence_piece("<0x0A>")
    (b' the', b'\\n')
    """
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(_SPACE_MARK, " ").encode("utf-8", "replace")
