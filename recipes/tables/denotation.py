"""Whether an answer is the one that a question of WikiTableQuestions asks for: the denotation, not the wording.

The rules are those of the official evaluator, written anew. An answer is a set of values. A value is a number, a date
or a text; texts are compared without case, accents, footnote marks, remarks in parentheses at the end and quotation
marks around them. Numbers are equal within 1e-6, dates are equal when year, month and day are (x is unknown). The
answer is right when it has as many different values as the gold one, and each gold value equals one of them.

The official files also have a machine's reading of each gold value (`1,234` is 1234, `June 7` is a date). Where the
data lacks it, `cells.read_number` and `cells.read_date` read the gold values. Answers are read strictly, as officially.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from .cells import read_date, read_number

MAX_VALUES, MAX_CHARS = 100, 600
"""An answer with more values, or a value with more characters, is wrong; no gold one is nearly as long."""
TOLERANCE = 1e-6

_SPELLINGS = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u00b4`", "'"),
        **dict.fromkeys("\u201c\u201d", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
    }
)
_FOOTNOTES = re.compile(r"(?:(?<!^)\[[^\]]*\]|^\[\d+\]|[•♦†‡*#+])+$")
_REMARK = re.compile(r"(?<!^)(?: \([^)]*\))+$")
_QUOTED = re.compile(r'^"([^"]*)"$')
_PLAIN_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?")
_ISO_DATE = re.compile(r"(\d{1,4}|xx|xxxx)-(\d{1,2}|xx)-(\d{1,2}|xx)")


@dataclass(frozen=True)
class Denoted:
    """One value."""

    text: str
    """Its normal form."""
    number: float | None = None
    date: tuple[int, int, int] | None = None
    """Year, month and day; -1 for what is unknown."""

    def matches(self, other: Denoted) -> bool:
        """Whether two values are equal."""
        if self.text == other.text:
            return True
        if self.number is not None and other.number is not None:
            return abs(self.number - other.number) < TOLERANCE
        return self.date is not None and self.date == other.date


def normal_form(text: str) -> str:
    """What two spellings of one value have in common.

    >>> normal_form('"Café  Noir"[1]'), normal_form("Paris (France)*"), normal_form("St. Johns.")
    ('cafe noir', 'paris', 'st. johns')
    """
    decomposed = unicodedata.normalize("NFKD", text)
    text = "".join(letter for letter in decomposed if unicodedata.category(letter) != "Mn").translate(_SPELLINGS)
    while True:
        before = text
        text = _FOOTNOTES.sub("", text.strip())
        text = _REMARK.sub("", text.strip())
        text = _QUOTED.sub(r"\1", text.strip())
        if text == before:
            break
    return " ".join(text.removesuffix(".").lower().split())


def gold_value(text: str) -> Denoted:
    """A gold value, with the number or the date that it is."""
    number = read_number(text)
    if number is not None:
        return Denoted(normal_form(text), number=float(number))
    date = read_date(text)
    return Denoted(normal_form(text), date=_ymd(date) if date else _ymd(text))


def answered_value(text: str) -> Denoted:
    """A value of an answer: `1234` and `12.5` are numbers, `2003-06-07` and `xx-06-07` are dates."""
    text = text.strip()
    if len(text) <= 40 and _PLAIN_NUMBER.fullmatch(text) and math.isfinite(float(text)):
        return Denoted(normal_form(text), number=float(text))
    return Denoted(normal_form(text), date=_ymd(text))


def _ymd(text: str) -> tuple[int, int, int] | None:
    found = _ISO_DATE.fullmatch(text.strip().lower())
    if found is None:
        return None
    year, month, day = (-1 if part.startswith("x") else int(part) for part in found.groups())
    if (year, month, day) == (-1, -1, -1) or month > 12 or day > 31 or 0 in (month, day):
        return None
    return year, month, day


def is_right(gold: Sequence[str], answer: Sequence[str]) -> bool:
    """Whether an answer has the values of the gold one.

    >>> is_right(["1,234"], ["1234.0"]), is_right(["June 7"], ["xx-06-07"]), is_right(["a", "b"], ["B", "a", "a"])
    (True, True, True)
    >>> is_right(["2"], ["2", "3"]), is_right(["a", "b"], ["a"])
    (False, False)
    """
    if not answer or len(answer) > MAX_VALUES or any(len(text) > MAX_CHARS for text in answer):
        return False
    targets = set(map(gold_value, gold))
    values = set(map(answered_value, answer))
    return len(targets) == len(values) and all(any(target.matches(value) for value in values) for target in targets)
