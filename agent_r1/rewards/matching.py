"""Comparing what a model wrote with what is right."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_DIGITS = r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
_NUMBER = re.compile(rf"(?:(?<![\w.)])-)?{_DIGITS}")  # in 10-5 the sign is an operator
_MARKED = re.compile(rf"####[ \t]*[$€£]?(?P<sign>-?)[$€£]?(?P<digits>{_DIGITS})[ \t]*%?\.?\s*\Z")
_VERDICTS = frozenset({"yes", "no", "noanswer"})
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


def exact_match(answer: str, accepted: Sequence[str]) -> bool:
    """Whether an answer is one of those that are right, up to case, punctuation, articles and spaces.

    >>> exact_match("the Beatles!", ["Beatles", "Fab Four"]), exact_match("", ["Beatles"])
    (True, False)
    """
    wanted = _comparable(answer)
    return bool(wanted) and any(wanted == _comparable(right) for right in accepted)


def f1_score(answer: str, accepted: Sequence[str]) -> float:
    """How many words an answer shares with the nearest one that is right: the harmonic mean of the share of its words
    that are wanted and the share of the wanted words that it has. Of "yes" and "no" nothing is shared.

    "Nick Hexum" for "Nicholas Lofton Hexum": 1 of 2 words is wanted, 1 of 3 is there, 2 * (1/2 * 1/3) / (1/2 + 1/3) =

    >>> round(f1_score("Nick Hexum", ["Nicholas Lofton Hexum", "Nicholas L. Hexum Jr."]), 3)
    0.4
    """
    return max((_words_in_common(_comparable(answer), _comparable(right)) for right in accepted), default=0.0)


def _words_in_common(answer: str, right: str) -> float:
    if answer != right and {answer, right} & _VERDICTS:
        return 0.0
    given, wanted = answer.split(), right.split()
    shared = (Counter(given) & Counter(wanted)).total()
    return 2 * shared / (len(given) + len(wanted)) if shared else 0.0


def _comparable(text: str) -> str:
    """The normalised text; one of articles or punctuation alone ("A", "!!!") stays as it is."""
    return normalise_text(text) or text.strip().lower()
