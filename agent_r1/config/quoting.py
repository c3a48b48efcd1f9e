"""Overrides as a shell passes them, written so that Hydra's grammar reads every character as it stands.

    model.path=/home/jürgen/m      ->  model.path='/home/jürgen/m'
    data.train=[/data/ä.jsonl,b]   ->  data.train=['/data/ä.jsonl',b]
    run.name=007                   ->  run.name='007'

Hydra's lexer knows the letters of ASCII and some punctuation; anything else has to be quoted. What its grammar reads (a
list, an object, a quoted text, an interpolation, a number) is left as it is.
"""

from __future__ import annotations

from functools import lru_cache

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException

_QUOTES = "'\""


def quoted(text: str) -> str:
    """A text in quotes, as Hydra reads it back.

    >>> quoted("it's")
    "'it\\\\'s'"
    """
    return QuotedString(text=text, quote=Quote.single).with_quotes()


def readable(value: str, *, is_text: bool) -> str:
    """The value of an override in a form that Hydra reads. `is_text`: its key holds text, so that a value in no quotes
    is text however much it looks like a number or a choice."""
    bare = value.strip()
    if is_text and bare not in ("", "null") and bare[0] not in _QUOTES and "${" not in bare:
        return quoted(value)
    if _is_read(value):
        return value
    if bare[:1] in ("[", "{") and "${" not in bare:
        inside = _with_quoted_items(bare)
        return inside if _is_read(inside) else value
    return quoted(value) if bare[:1] not in ("[", "{", *_QUOTES) else value


def _is_read(value: str) -> bool:
    """Hydra reads it as one value; `a,b` would be a sweep over two."""
    try:
        return _is_one_value(value)
    except RecursionError:  # it says something about the caller's depth too, so it is not kept
        return False


@lru_cache(maxsize=4096)
def _is_one_value(value: str) -> bool:
    try:
        return not OverridesParser.create().parse_override(f"key={value}").is_sweep_override()
    except (HydraException, ValueError):
        return False


def _with_quoted_items(value: str) -> str:
    """A list or object whose bare items are quoted where Hydra could not read them."""
    result: list[str] = []
    item = ""
    position = 0
    while position < len(value):
        character = value[position]
        if character in _QUOTES and not item.strip():
            end = _end_of_quoted(value, position)
            result.append(item + value[position:end])
            item, position = "", end
            continue
        separates = character in "[]{}," or (character == ":" and _is_key(result, item))
        if separates:
            result.extend((_item(item), character))
            item = ""
        else:
            item += character
        position += 1
    return "".join([*result, _item(item)])


def _is_key(result: list[str], item: str) -> bool:
    """Whether a colon after `item` ends a key of an object: the innermost bracket is an object's, and no key stands
    before it in this entry."""
    depth, opened = 0, ""
    for part in reversed(result):
        if depth == 0 and part in (",", ":"):
            opened = opened or part
        if part in ("]", "}"):
            depth += 1
        elif part in ("[", "{"):
            if depth == 0:
                return part == "{" and opened != ":"
            depth -= 1
    return False


def _end_of_quoted(value: str, start: int) -> int:
    position = start + 1
    while position < len(value):
        if value[position] == "\\":
            position += 1
        elif value[position] == value[start]:
            return position + 1
        position += 1
    return len(value)


def _item(item: str) -> str:
    bare = item.strip()
    return item if not bare or _is_read(f"[{item}]") else item.replace(bare, quoted(bare), 1)
