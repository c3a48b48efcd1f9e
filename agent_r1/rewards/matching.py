"""Comparing what a model wrote with what is right."""

from __future__ import annotations

import re
import string

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
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
