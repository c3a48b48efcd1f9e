"""Answers as LaTeX writes them: what is in \\boxed{}, and whether two answers have the same value.

Values are computed by a small parser of numbers, fractions, roots, pi, sums and products. Nothing is evaluated as code.
"""

from __future__ import annotations

import math
import re

MAX_LENGTH = 200
"""Longer answers are compared letter for letter only."""
TOLERANCE = 1e-4
"""Relative: answers are given with few digits."""

_TOKEN = re.compile(r"\d+(?:\.\d+)?|\.\d+|\\[a-zA-Z]+|[-+*/^(){}\[\]]")
_NO_MEANING = re.compile(
    r"\\(?:left|right|displaystyle|,|;|!|:|quad)|\\text\s*\{[^{}]*\}|\^?\s*\\circ|\^\{\\circ\}|[$°%]"
)
_UNITS = re.compile(r"(?<=[\d)}])\s*(?:degrees?|units?|cm|mm|m|in|ft|square|sq)\b.*$", re.IGNORECASE)


def boxed(text: str) -> str | None:
    """What stands in the last \\boxed{} of a text.

    >>> boxed(r"so \\boxed{3}, no: \\boxed{\\frac{1}{2}}")
    '\\\\frac{1}{2}'
    """
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    begin = start + len("\\boxed{")
    depth = 1
    for end in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if not depth:
            return text[begin:end].strip() or None
    return None


def same_answer(given: str, truth: str) -> bool:
    """Whether two answers are the same choice, the same text, or have the same value.

    >>> same_answer("2\\\\sqrt{3}", "3.4641"), same_answer("(B)", "b"), same_answer("x=7", "7"), same_answer("8", "7")
    (True, True, True, False)
    """
    one, other = _plain(given), _plain(truth)
    if one and one == other:
        return True
    choices = [re.fullmatch(r"\(?([A-Da-d])\)?\.?", text) for text in (one, other)]
    if all(choices):
        return one.strip("().").lower() == other.strip("().").lower()
    values = value_of(given), value_of(truth)
    return None not in values and math.isclose(values[0], values[1], rel_tol=TOLERANCE)  # type: ignore[arg-type]


def value_of(answer: str) -> float | None:
    """The value of an answer; None when it is no number.

    >>> value_of("\\\\frac{3}{4}"), value_of("5 \\\\sqrt{2} cm"), value_of("two")
    (0.75, 7.0710678118654755, None)
    """
    text = _plain(answer)
    if not text or len(text) > MAX_LENGTH:
        return None
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != text.replace(" ", ""):
        return None
    try:
        reader = _Reader(tokens)
        value = reader.sum()
        return value if not reader.tokens and math.isfinite(value) else None
    except (ValueError, TypeError, ArithmeticError, RecursionError):
        return None


def _plain(answer: str) -> str:
    text = (
        _NO_MEANING.sub("", answer[: 2 * MAX_LENGTH])
        .replace("\\cdot", "*")
        .replace("\\times", "*")
        .replace("\\dfrac", "\\frac")
    )
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    text = re.sub(r"^\s*[a-zA-Z]\s*=\s*", "", text)
    return _UNITS.sub("", text).strip().rstrip(".")


class _Reader:
    """A recursive reader of tokens."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens[::-1]

    def sum(self) -> float:
        value = self.product()
        while self.tokens and self.tokens[-1] in "+-":
            value = value + self.product() if self.tokens.pop() == "+" else value - self.product()
        return value

    def product(self) -> float:
        value = self.power()
        while self.tokens and self.tokens[-1] not in ("+", "-", ")", "}", "]"):
            if self.tokens[-1] == "/":
                self.tokens.pop()
                value /= self.power()
            else:
                if self.tokens[-1] == "*":
                    self.tokens.pop()
                value *= self.power()
        return value

    def power(self) -> float:
        value = self.single()
        if self.tokens and self.tokens[-1] == "^":
            self.tokens.pop()
            exponent = self.single()
            if abs(exponent) > 64 or (value < 0 and not exponent.is_integer()):
                raise ValueError
            return float(value**exponent)
        return value

    def single(self) -> float:
        token = self.tokens.pop() if self.tokens else ""
        if token == "-":
            return -self.power()
        if token in ("(", "{", "["):
            value = self.sum()
            self.close({"(": ")", "{": "}", "[": "]"}[token])
            return value
        if token == "\\frac":
            top = self.single()
            return top / self.single()
        if token == "\\sqrt":
            if self.tokens and self.tokens[-1] == "[":
                degree = self.single()
                return float(self.single() ** (1 / degree))
            return math.sqrt(self.single())
        if token == "\\pi":
            return math.pi
        return float(token)

    def close(self, bracket: str) -> None:
        if not self.tokens or self.tokens.pop() != bracket:
            raise ValueError
