"""Comparing what a model wrote with what is right."""

from __future__ import annotations

import re
import string

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_DIGITS = r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
_NUMBER = re.compile(rf"(?:(?<![\w.)])-)?{_DIGITS}")  # in 10-5 the sign is an operator
_MARKED = re.compile(rf"####[ \t]*[$€£]?(?P<sign>-?)[$€£]?(?P<digits>{_DIGITS})[ \t]*%?\.?\s*\Z")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_text(text: str) -> str:
    """Lower case, without punctuation, articles and extra spaces.

    >>> normalise_text("The  Eiffel-Tower!")
    'eiffeltower'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def last_number(text: str) -> float | None:
    """The last number in a text, or None.

    >>> last_number("12 pears cost 1,250.50 in all.")
    1250.5
    """
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def marked_number(text: str) -> float | None:
    """The number that a text ends with after `####`, alone on its line, or None.

    >>> marked_number("12 pears at 104 each.\\n#### $1,248"), marked_number("#### 12 or 13"), marked_number("12")
    (1248.0, None, None)
    """
    found = _MARKED.search(text)
    return float(found["sign"] + found["digits"].replace(",", "")) if found else None
