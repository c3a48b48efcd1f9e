"""Reading numbers from text, exactly.

Numbers are fractions, so nothing is rounded: 0.1 is 1/10, and 10**17 + 1 is not 10**17. Read are

| written | read as |
|---|---|
| `1,250.50` `1 250.50` `1'250.50` `1_250.50` `1{,}250.50` `12,50,000` | grouped digits |
| `-5` `-$5` `$-5` `= - 5`, and the same with a Unicode minus | a sign, before or after a currency |
| `1/2` `1 1/2` `\\frac{1}{2}`, and Unicode fractions | a fraction |
| `3.0e5` `3 x 10^5` `3 \\times 10^{5}` `10^5` | scientific notation |
| `50%` `5 kg` `5 million` | 50, 5, 5: what follows is a unit |

In `10-5` the sign is an operator: the numbers are 10 and 5. What looks like a number and is none that we can read
(`3:45`, `1/2/3`, `1.2.3`, `3,5`, `2^10`, `0x1F`, `1/0`, a number of more than 300 digits) is no number at all: an
answer that ends with one has none.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from decimal import Decimal
from fractions import Fraction
from numbers import Rational
from typing import Any

MAX_DIGITS = 300
"""Digits of a number, and its exponent, at most: `1e999999999` must not fill the memory."""

_MINUS = "-\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"
_SIGN = rf"[{_MINUS}+\uff0b]"
_CURRENCY = r"(?:(?:[A-Z]{1,3})?\\?[$€£¥₹]|\b(?:USD|EUR|GBP|JPY|CNY|RMB|INR|CHF|CAD|AUD|Rs\.?))"
_GROUPS = "|".join(
    rf"(?:{separator}\d{{3}})+"
    for separator in (",", " ", "\u00a0", "\u2007", "\u2009", "\u202f", "'", "\u2019", "_", r"\{,\}", r"\\,")
)
_INTEGER = rf"(?:\d{{1,3}}(?:{_GROUPS})(?!\d)|\d{{1,2}}(?:,\d{{2}})+,\d{{3}}(?!\d)|\d+)"
_DECIMAL = rf"(?:{_INTEGER}(?:\.\d+)?|(?<![.\d])\.\d+)"
_TIMES_TEN = (
    rf"[ ]*(?:[\u00d7x*\u00b7\u22c5]|\\times|\\cdot)[ ]*10(?:[ ]*(?:\^|\*\*)[ ]*\{{?[ ]*(?P<power>{_SIGN}?\d+)[ ]*\}}?"
    r"|(?P<superscript>[⁻⁺]?[⁰¹²³⁴-⁹]+))"
)
_POWER_OF_TEN = (
    rf"10(?:[ ]*(?:\^|\*\*)[ ]*\{{?[ ]*(?P<only_power>{_SIGN}?\d+)[ ]*\}}?"
    r"|(?P<only_superscript>[⁻⁺]?[⁰¹²³⁴-⁹]+))(?!\d)"
)
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_VULGAR = "¼½¾⅐-⅞↉"
_SLASH = r"[/\u2044\u2215]"
_LATEX = rf"\\[dt]?frac\{{(?P<latex_over>{_SIGN}?{_INTEGER})\}}\{{(?P<latex_under>{_SIGN}?{_INTEGER})\}}"
_VALUE = (
    rf"(?:{_LATEX}"
    rf"|(?:(?P<whole>\d+)[ \u2009\u202f-]?)?(?P<vulgar>[{_VULGAR}])"
    rf"|(?:(?P<mixed>\d+)[ ](?=\d{{1,2}}[ ]?{_SLASH}))?(?P<over>{_DECIMAL})[ ]?{_SLASH}[ ]?(?P<under>{_DECIMAL})"
    rf"|{_POWER_OF_TEN}"
    rf"|(?P<decimal>{_DECIMAL})(?:[eE](?P<exponent>{_SIGN}?\d+)(?!\d)|{_TIMES_TEN})?)"
)
_SIGNED = (
    rf"(?:(?P<spaced>(?<=[=≈])[ \t]*{_SIGN}[ \t]*)|(?P<outer>(?<![A-Za-z\d)\]}}])(?<!\d\.){_SIGN}))?"
    rf"(?:(?P<currency>{_CURRENCY})[ ]?(?P<inner>{_SIGN}?))?"
)
# The digits of a name (CO2, x_1) are no number, unless the name is a currency's (USD200).
_NUMBER = re.compile(rf"{_SIGNED}(?(currency)|(?<![A-Za-z\d])(?<!\w_)){_VALUE}")
_MARKED = re.compile(rf"####[ \t]*(?P<number>{_SIGNED}{_VALUE})[ \t]*\\?%?\.?\s*\Z")

# What stands right before or after digits of something that is no number: a time, a date, a version, a power, a code.
_NOT_BEFORE = re.compile(
    r"(?:\d[:.]"
    r"|(?:\A|[^\d,])[\d.]*\d,"
    rf"|[\d)}}{_RAISED}][ ]?{_SLASH}[ ]?"
    r"|\d[A-Za-z]+"
    r"|\^[ ]?[({]?"
    r"|[\d)}](?:\*\*|[ ]\*\*[ ])"
    r")\Z"
)
_NOT_AFTER = re.compile(
    rf"[:.]\d|[ ]?{_SLASH}[ ]?\d|[{_RAISED}]"
    r"|[ ]?\^[ ]?[({]?[-+\u2212]?\w"
    r"|(?:\*\*|[ ]\*\*[ ])[-+\u2212(]*\d"
    r"|[A-Za-z]+\d"
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_AROUND = 12


def find_last_number(text: str) -> Fraction | None:
    """The last number in a text; None when there is none, or when it cannot be read.

    >>> find_last_number("12 pears cost 1,250.50 in all."), find_last_number("it is -1/2"), find_last_number("at 3:45")
    (Fraction(2501, 2), Fraction(-1, 2), None)
    """
    matches = deque(_NUMBER.finditer(text), maxlen=1)
    last = matches[0] if matches else None
    if last is None or _is_part_of_a_code(text, last):
        return None
    return _value(last)


def find_marked_number(text: str) -> Fraction | None:
    """The number that a text ends with after `####`, alone on its line; None when there is none.

    >>> find_marked_number("12 pears at 104 each.\\n#### $1,248"), find_marked_number("#### 12 or 13")
    (Fraction(1248, 1), None)
    """
    match = _MARKED.search(text)
    return None if match is None else _value(match)


def to_number(value: Any) -> Fraction | None:
    """The number that a value of a data row is: a number, or text whose last number it is; None when it is none.

    >>> to_number(0.1) == to_number("0.1") == to_number("1/10"), to_number(None), to_number(True)
    (True, None, None)
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, Rational):
        return Fraction(int(value.numerator), int(value.denominator))
    if isinstance(value, float | Decimal):
        return find_last_number(str(value)) if value == value and abs(value) != float("inf") else None
    return find_last_number(value) if isinstance(value, str) else None


def number_text(number: Fraction) -> str:
    """One way to write each number, so that a majority vote counts 5, 5.0 and $5 as one answer.

    >>> number_text(Fraction(5)), number_text(Fraction(-5, 2)), number_text(Fraction(1, 3))
    ('5', '-2.5', '1/3')
    """
    twos_and_fives, places = number.denominator, 0
    while twos_and_fives % 10 == 0:
        twos_and_fives, places = twos_and_fives // 10, places + 1
    for factor in (2, 5):
        while twos_and_fives % factor == 0:
            twos_and_fives, places = twos_and_fives // factor, places + 1
    if twos_and_fives != 1:
        return f"{number.numerator}/{number.denominator}"
    digits = str(abs(number.numerator) * 10**places // number.denominator).rjust(places + 1, "0")
    sign = "-" if number < 0 else ""
    if not places:
        return sign + digits
    return f"{sign}{digits[:-places]}.{digits[-places:]}".rstrip("0").rstrip(".")


def _is_part_of_a_code(text: str, match: re.Match[str]) -> bool:
    start, end = match.span()
    before, after = text[max(0, start - _AROUND) : start], text[end : end + _AROUND]
    signed = match.group("outer") or match.group("spaced") or match.group("inner")
    return bool((not signed and _NOT_BEFORE.search(before)) or _NOT_AFTER.match(after))


def _value(match: re.Match[str]) -> Fraction | None:
    parts = match.groupdict()
    try:
        size = _size(parts)
    except (_UnreadableError, ZeroDivisionError):
        return None
    signs = "".join(parts[name] or "" for name in ("spaced", "outer", "inner"))
    return -size if sum(character in _MINUS for character in signs) % 2 else size


class _UnreadableError(ValueError):
    """Too many digits, or no proper number."""


def _size(parts: dict[str, str | None]) -> Fraction:
    """The number without the sign before it."""
    if parts["latex_over"] and parts["latex_under"]:
        return _fraction(parts["latex_over"]) / _fraction(parts["latex_under"])
    if parts["vulgar"]:
        over, _, under = unicodedata.normalize("NFKC", parts["vulgar"]).partition("\u2044")
        return _fraction(parts["whole"] or "0") + Fraction(int(over), int(under))
    if parts["over"] and parts["under"]:
        part = _fraction(parts["over"]) / _fraction(parts["under"])
        if parts["mixed"] and part >= 1:  # `2 7/3` is no mixed number
            raise _UnreadableError(parts["over"])
        return _fraction(parts["mixed"] or "0") + part
    ten = Fraction(10)
    only = parts["only_power"] or (parts["only_superscript"] or "").translate(_SUPERSCRIPTS)
    if only:
        return ten ** _exponent(only)
    power = parts["exponent"] or parts["power"] or (parts["superscript"] or "").translate(_SUPERSCRIPTS)
    return _fraction(parts["decimal"] or "") * ten ** _exponent(power or "0")


def _fraction(text: str) -> Fraction:
    """A decimal number without grouping marks, with its sign."""
    negative = text[:1] in _MINUS and bool(text)
    digits = re.sub(r"[^\d.]", "", text)
    if len(digits) > MAX_DIGITS:
        raise _UnreadableError(text)
    return -Fraction(f"0{digits}") if negative else Fraction(f"0{digits}")


def _exponent(text: str) -> int:
    digits = re.sub(r"\D", "", text)
    if len(digits) > 4 or int(digits) > MAX_DIGITS:
        raise _UnreadableError(text)
    return -int(digits) if text[:1] in _MINUS and text else int(digits)
