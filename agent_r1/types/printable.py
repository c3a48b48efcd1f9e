"""Text that a terminal may print: what models and tools wrote, with nothing left that a terminal would obey."""

from __future__ import annotations

import unicodedata

_KEPT = "\n\t\u200c\u200d"
"""Line ends, tabs, and the joiners that scripts and emoji need."""


def printable(text: str) -> str:
    """The text with control characters, escape sequences and marks of direction made visible.

    A cleared screen, a changed window title, a hyperlink or a line that reads backwards all begin with such a
    character. Characters are treated one by one, so the parts of a stream can be printed as they come.

    >>> printable("\\x1b[2Jred\\u202e")
    '␛[2Jred<U+202E>'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character in _KEPT:
        return character
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\N{SYMBOL FOR DELETE}"
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return f"<U+{code:04X}>"
    return character


def one_line(text: str, limit: int = 200) -> str:
    """Printable text on one line, cut at `limit` characters."""
    line = printable(text.replace("\n", "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}").replace("\t", " "))
    return line if len(line) <= limit else f"{line[: limit - 1]}\N{HORIZONTAL ELLIPSIS}"
