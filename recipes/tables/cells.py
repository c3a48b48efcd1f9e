"""Numbers and dates in the texts of cells and answers."""

from __future__ import annotations

import re

EMPTY = frozenset({"", "-", "\N{EN DASH}", "\N{EM DASH}", "n/a", "na", "?", "…", "..."})
"""Cells that say that there is no value."""

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = r"(?P<month>jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DAY, _YEAR = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?", r"(?P<year>\d{4})"
_DATES = tuple(
    re.compile(form)
    for form in (
        rf"{_MONTH}\s+{_DAY},?\s+{_YEAR}",
        rf"{_DAY}\s+{_MONTH},?\s+{_YEAR}",
        rf"{_YEAR}-(?P<number>\d\d)-{_DAY}",
        rf"{_MONTH},?\s+{_YEAR}",
        rf"{_MONTH}\s+{_DAY}",
        rf"{_DAY}\s+{_MONTH}",
    )
)
_DATE_LIKE = re.compile(rf"\d-\d|{'|'.join(_MONTHS)}")
"""Most texts are no dates, which this says at once."""
_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|0|[1-9]\d*)?(?:\.\d+)?")
_FIRST_NUMBER = re.compile(r"(?<![\w.])-?\d{1,3}(?:,\d{3})+(?:\.\d+)?|(?<![\d.])\d{1,15}(?:\.\d+)?")
_MINUS = str.maketrans({"\N{MINUS SIGN}": "-", "\N{EN DASH}": "-"})
_MONEY = re.compile(r"[$£€¥\s]|US\$")


def read_number(text: str) -> float | int | None:
    """The number that a text is, with or without commas; None for any other text.

    >>> read_number("1,234"), read_number("-2.50"), read_number("007"), read_number("3 km")
    (1234, -2.5, None, None)
    """
    text = text.strip().translate(_MINUS)
    if not text or len(text) > 25 or not text[-1].isdigit() or not _NUMBER.fullmatch(text):
        return None
    return as_number(float(text.replace(",", "")))


def read_amount(text: str) -> float | int | None:
    """The number that a cell of a financial table is: with a currency, in parentheses where negative, or a percentage.

    >>> read_amount("$  1,452.4"), read_amount("(12)"), read_amount("3.5 %"), read_amount("2019 (1)")
    (1452.4, -12, 3.5, None)
    """
    bare = _MONEY.sub("", text)
    negative = bare.startswith("(") and bare.endswith((")", ")%"))
    bare = bare.strip("()%") if negative else bare.removesuffix("%")
    number = read_number(bare)
    return -number if negative and number is not None else number


def first_number(text: str) -> float | int | None:
    """The first number in a text.

    >>> first_number("3-1 (aet)"), first_number("£1,250.50"), first_number("none")
    (3, 1250.5, None)
    """
    found = _FIRST_NUMBER.search(text.translate(_MINUS))
    return as_number(float(found.group().replace(",", ""))) if found else None


def read_date(text: str) -> str | None:
    """The date that a text is, as `YYYY-MM-DD`, with x for what is not said; None for any other text.

    >>> read_date("June 7, 2003"), read_date("7 Jun"), read_date("June 2003"), read_date("in June")
    ('2003-06-07', 'xxxx-06-07', '2003-06-xx', None)
    """
    text = " ".join(text.lower().split())
    if len(text) > 30 or not _DATE_LIKE.search(text):
        return None
    for form in _DATES:
        if found := form.fullmatch(text):
            parts = found.groupdict()
            month = int(parts["number"]) if parts.get("number") else _MONTHS.index(parts["month"]) + 1
            day = int(parts.get("day") or 0)
            if 1 <= month <= 12 and day <= 31:
                return f"{parts.get('year') or 'xxxx'}-{month:02d}-{f'{day:02d}' if day else 'xx'}"
    return None


def as_number(value: float) -> float | int:
    """A number without a fraction as an int.

    >>> as_number(2.0), as_number(2.5)
    (2, 2.5)
    """
    return int(value) if value == int(value) and abs(value) < 1e15 else value


def number_text(value: float | int) -> str:
    """A number as it is shown: without an exponent, at most six digits behind the point.

    >>> number_text(2.0), number_text(1 / 3), number_text(1e12)
    ('2', '0.333333', '1000000000000')
    """
    if isinstance(value, int):
        return str(value)
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    return f"{value:.6f}".rstrip("0").rstrip(".") if abs(value) < 1e15 else f"{value:g}"
