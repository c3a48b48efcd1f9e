"""Whether an answer is the one that a question of WikiTableQuestions asks for: the denotation, not the wording.

The rules are those of the official evaluator, written anew. An answer is a set of values. A value is a number, a date
or a text; texts are compared without case, accents, footnote marks, remarks in parentheses at the end and quotation
marks around them. Numbers are equal within 1e-6, dates are equal when year, month and day are (x is unknown); a year
alone is a number. The answer is right when it has as many different values as the gold one, and each gold value equals
one of them. One rule is not followed: the official evaluator cuts 2.9999999 to 2, here it is 3.

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

    @property
    def identity(self) -> str | float | tuple[int, int, int]:
        """What tells it from other values of its side: 3 and 3.0 are one value."""
        return self.date or (self.text if self.number is None else round(self.number, 6))

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
    return _dated(text, read_date(text) or text)


def answered_value(text: str) -> Denoted:
    """A value of an answer: `1234` and `12.5` are numbers, `2003-06-07` and `xx-06-07` are dates."""
    text = text.strip()
    if len(text) <= 40 and _PLAIN_NUMBER.fullmatch(text) and math.isfinite(float(text)):
        return Denoted(normal_form(text), number=float(text))
    return _dated(text, text)


def _dated(text: str, date: str) -> Denoted:
    """A value that may be a date; a year alone is a number."""
    ymd = _ymd(date)
    if ymd is not None and ymd[1:] == (-1, -1):
        return Denoted(normal_form(text), number=float(ymd[0]))
    return Denoted(normal_form(text), date=ymd)


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
    targets = {value.identity: value for value in map(gold_value, gold)}.values()
    values = {value.identity: value for value in map(answered_value, answer)}.values()
    return len(targets) == len(values) and all(any(target.matches(value) for value in values) for target in targets)
