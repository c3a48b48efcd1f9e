"""JSON as models write it: parsed strictly first, and repaired only when that fails and the meaning is unambiguous.

    {"name": "add", "arguments": {'a': None,}}   ->   {"name": "add", "arguments": {"a": null}}

Repaired: a code fence around the JSON, single quotes, `True` / `False` / `None`, trailing commas, raw newlines in
strings, missing closing braces at the very end (at most two) and surplus closing braces. Not repaired, because it would
be a guess: unquoted keys, quotes inside strings, stray backslashes, a value that breaks off. One pass over the text;
no text raises anything but a ValueError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from agent_r1.chat.control_tokens import SPLIT

MISSING_BRACE = "missing closing brace"

_DECODER = json.JSONDecoder()
_FENCE = re.compile(r"```[A-Za-z]*[ \t]*\r?\n")
_FENCE_END = re.compile(r"\s*```")
_SPACES = re.compile(r"\s*")
_TOKEN = re.compile(
    r"""\s++|"[^"\\]*+(?:\\.[^"\\]*+)*+"|'[^'\\]*+(?:\\.[^'\\]*+)*+'|[\[\]{}:,]|[A-Za-z]++|[0-9.eE+-]++""", re.DOTALL
)
_ESCAPED = re.compile(r"\\(.)|\"", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")
_CLOSER = {"{": "}", "[": "]"}
_NOT_A_VALUE = ("{", "[", ",", ":")
_AFTER_A_VALUE = (",", ":", "}", "]")
_JSON_WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_MAX_MISSING_BRACES = 2  # the call's own and its arguments'
_MAX_DEPTH = 100
_WINDOW = 4096


class JsonRead(NamedTuple):
    """A parsed JSON value."""

    value: Any
    """The value."""
    end: int
    """The index after it."""
    repairs: tuple[str, ...]
    """What was repaired; empty for valid JSON."""


def skip_spaces(text: str, start: int) -> int:
    """The index of the first character from `start` on that is not whitespace."""
    spaces = _SPACES.match(text, start)
    return spaces.end() if spaces else start


def read_json(text: str, start: int = 0, limit: int | None = None) -> JsonRead:
    """The JSON value that begins at `start` and ends before `limit`. ValueError says what is wrong with it.

    >>> read_json('{"a": [1, 2,]} and more')
    JsonRead(value={'a': [1, 2]}, end=14, repairs=('trailing comma',))
    """
    limit = len(text) if limit is None else limit
    near = start + _WINDOW
    if near < limit:
        # An error makes the decoder scan all text before it: with many small values that would be quadratic.
        try:
            result = _read_window(text[start:near])
            if result.end < _WINDOW:
                return result._replace(end=start + result.end)
        except ValueError:
            pass
    result = _read_window(text[start:limit])
    return result._replace(end=start + result.end)


def read_valid_json(text: str, start: int) -> JsonRead | None:
    """The valid JSON value that begins at `start`, if there is one; nothing is repaired."""
    try:
        value, end = _DECODER.raw_decode(text, skip_spaces(text, start))
    except (ValueError, RecursionError):
        return None
    return JsonRead(value, end, ())


def read_whole_json(text: str, start: int, limit: int) -> JsonRead:
    """The JSON value that fills `text[start:limit]`; surplus closing braces are repaired too."""
    result = read_json(text, start, limit)
    rest = text[result.end : limit].strip()
    if not rest:
        return result
    if not rest.strip("}"):
        return JsonRead(result.value, limit, (*result.repairs, "extra closing brace"))
    raise ValueError(f"not valid JSON (it is complete at character {result.end - start}, then found {rest[0]!r})")


def dump_json(value: Any, escaped: Sequence[str] = ()) -> str:
    r"""The value as JSON on one line, with the marks in `escaped` written so that no parser takes them for marks.

    >>> dump_json({"a": "</think>"}, ["</think>"])
    '{"a": "\\u003c/think>"}'
    """
    text = json.dumps(value, ensure_ascii=False)
    for mark in escaped:
        # A mark can only occur inside a string, where every backslash is one of a pair.
        for mark_text in (mark, mark[0] + SPLIT + mark[1:]):
            text = text.replace(mark_text, f"\\u{ord(mark[0]):04x}{mark[1:]}")
    return text


def _read_window(text: str) -> JsonRead:
    first = skip_spaces(text, 0)
    fence = _FENCE.match(text, first)
    if fence is None:
        return _read_bare(text, first)
    result = _read_bare(text, skip_spaces(text, fence.end()))
    closing = _FENCE_END.match(text, result.end)
    return JsonRead(
        result.value, closing.end() if closing else result.end, ("code fence around the JSON", *result.repairs)
    )


def _read_bare(text: str, start: int) -> JsonRead:
    try:
        value, end = _DECODER.raw_decode(text, start)
        return JsonRead(value, end, ())
    except json.JSONDecodeError as error:
        place = f"found {text[error.pos]!r}" if error.pos < len(text) else "found its end"
        message = f"not valid JSON ({error.msg} at character {error.pos}, {place})"
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    except ValueError:
        raise ValueError("a number in the JSON has too many digits") from None
    repaired = _repair(text, start)
    if repaired is None:
        raise ValueError(message)
    try:
        return JsonRead(json.loads(repaired.value), repaired.end, repaired.repairs)
    except (ValueError, RecursionError):
        raise ValueError(message) from None


def _repair(text: str, start: int) -> JsonRead | None:
    """The value that begins at `start` as JSON text, which may still be invalid; None when repairing would be a
    guess."""
    pieces: list[str] = []
    repairs: dict[str, None] = {}
    closers: list[str] = []
    position = start
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or len(closers) > _MAX_DEPTH:
            return None
        token, position = match.group(), match.end()
        if token.isspace():
            continue
        after_value = bool(pieces) and pieces[-1] not in _NOT_A_VALUE
        if after_value == (token not in _AFTER_A_VALUE) and token not in ("}", "]"):
            return None
        if token[0] in "\"'":
            token = _repair_string(token, repairs)
        elif token in _CLOSER:
            closers.append(_CLOSER[token])
        elif token in ("}", "]"):
            if not closers or closers.pop() != token:
                return None
            if pieces[-1] == "," and pieces[-2] not in _NOT_A_VALUE:
                pieces.pop()
                repairs["trailing comma"] = None
        elif token.isalpha():
            if token not in _JSON_WORDS:
                return None
            if _JSON_WORDS[token] != token:
                repairs[f"Python {token}"] = None
                token = _JSON_WORDS[token]
        pieces.append(token)
        if not closers:
            break
    if closers:
        if len(closers) > _MAX_MISSING_BRACES or "]" in closers or pieces[-1] in _NOT_A_VALUE:
            return None
        repairs[MISSING_BRACE] = None
    return JsonRead(" ".join([*pieces, *closers]), position, tuple(repairs))


def _repair_string(token: str, repairs: dict[str, None]) -> str:
    """A quoted string as a JSON string."""
    inside = token[1:-1]
    if token[0] == "'":
        repairs["single quotes"] = None
        inside = _ESCAPED.sub(lambda m: "'" if m[1] == "'" else '\\"' if m[0] == '"' else m[0], inside)
    for control in dict.fromkeys(_CONTROL.findall(inside)):
        repairs["unescaped newline in a string" if control == "\n" else "unescaped control character"] = None
        inside = inside.replace(control, json.dumps(control)[1:-1])
    return f'"{inside}"'
