"""Exact match and F1 for TAT-QA, with the scale: 1.2 million, 1,200 thousand and 1,200,000 are one answer.

A span that is a number is compared after its scale: rounded to two places as it is written, then multiplied; `12 %` is
0.12 whatever the scale says, and `1.2 million` brings its own. One number without a scale is also compared as it is:
0.2342 answers 23.42 percent. Other texts are words without punctuation and articles, and carry their scale as a word.
An exact match is one of all spans in any order; F1 is that of the bags of words of all spans. Numbers that were
calculated or counted are right or wrong: their F1 is the exact match.

The rules are those of the official metric, written anew. Exceptions: `(1,234)` and `(3.5)%` are negative numbers, 5 and
5.0 are one word, the order of spans does not depend on capitals, marks without a word are equal only to themselves, and
an unknown scale is wrong.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

SCALES = {"": 1.0, "percent": 0.01, "thousand": 1e3, "million": 1e6, "billion": 1e9}
MAX_SPANS, MAX_CHARS = 12, 1500
_WORD_SCALES = {**SCALES, "hundred": 100.0}
_ARTICLES = frozenset(("a", "an", "the"))
_SYMBOLS = str.maketrans({"\N{MINUS SIGN}": "-", **dict.fromkeys("'\"\\$\u20ac\u00a3\u00a5%(),[]")})
_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation))
_FLOAT = re.compile(r"[+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})")
_NEGATIVE = re.compile(r"\([$\u20ac\u00a3\u00a5\s]*[\d.,\s]+%?\)")
_PERCENT = re.compile(r"\d[\s)]*%")


def same_scale(gold: str, answer: str) -> bool:
    """Whether a scale is the gold one.

    >>> same_scale("million", "Millions"), same_scale("", "none"), same_scale("percent", "")
    (True, True, False)
    """
    return scale_of(answer) == gold


def scale_of(text: str) -> str:
    """The scale that a text names; `?` for one that does not exist."""
    word = text.strip().strip(".").lower().rstrip("s")
    if word in ("", "none", "%"):
        return "percent" if word == "%" else ""
    return word if word in SCALES else "?"


def exact_and_f1(
    gold: Sequence[str], gold_scale: str, answer: Sequence[str], answer_scale: str, *, numeric: bool
) -> tuple[float, float]:
    """Exact match and F1.

    >>> exact_and_f1(["1.5"], "million", ["1500"], "thousand", numeric=True)
    (1.0, 1.0)
    >>> exact_and_f1(["12.5"], "percent", ["12.5"], "", numeric=True)
    (0.0, 0.0)
    >>> exact_and_f1(["net sales"], "", ["the sales"], "", numeric=False)
    (0.0, 0.67)
    """
    scale = scale_of(answer_scale)
    too_much = len(answer) > MAX_SPANS or any(len(text) > MAX_CHARS for text in answer)
    if not answer or too_much or scale == "?":
        return 0.0, 0.0
    target = _words(gold, gold_scale)
    answers = [_words(answer, scale)]
    number = read_quantity(answer[0]) if len(answer) == 1 else None
    if number is not None and not scale and "%" not in answer[0]:
        answers.append([_number_text(number)])
    exact = float(target in answers)
    return exact, exact if numeric or exact else max(_bag_f1(target, words) for words in answers)


def read_quantity(text: str) -> float | None:
    """The number that a span is, with its own percent sign or scale; None for any other text.

    >>> read_quantity("$1,452.4"), read_quantity("(12.6)"), read_quantity("12 %"), read_quantity("1.5 million")
    (1452.4, -12.6, 0.12, 1500000.0)
    >>> read_quantity("2019 sales"), read_quantity("n/a")
    (None, None)
    """
    words = text.translate(_SYMBOLS).split()
    if not words or not _FLOAT.fullmatch(words[0]):
        return None
    factor = 1.0
    if len(words) > 1:
        named = [value for name, value in _WORD_SCALES.items() if name and name in words[1].lower()]
        if not named:
            return None
        factor = named[0]
    factor *= (-1 if _NEGATIVE.search(text) else 1) * (0.01 if _PERCENT.search(text) else 1)
    return round(float(words[0]) * factor, 4)


def _words(spans: Sequence[str], scale: str) -> list[str]:
    """The words of all spans, whatever their order; a number is one word, which has its scale in it. Spans without any
    word are their marks: "-" is not "."."""
    words = [word for span in sorted(_span(text, scale) for text in spans) for word in span]
    return words or sorted(text.strip() for text in spans)


def _span(text: str, scale: str) -> list[str]:
    number = read_quantity(text)
    if number is not None:
        return [_number_text(number if "%" in text else round(number, 2) * SCALES[scale])]
    words = [word for word in map(_word, text.lower().split()) if word and word not in _ARTICLES]
    return [*words, *([scale] if scale else [])]


def _word(word: str) -> str:
    number = read_quantity(word)
    return word.translate(_PUNCTUATION) if number is None else _number_text(number)


def _number_text(number: float) -> str:
    return f"{number + 0.0:.4f}"  # there is no -0


def _bag_f1(target: Sequence[str], answer: Sequence[str]) -> float:
    one, other = set(target), set(answer)
    common = len(one & other)
    return round(2 * common / (len(one) + len(other)), 2) if common else 0.0


def derivation_share(derivation: str, texts: Sequence[str]) -> float:
    """The share of the numbers in a gold derivation that programs and answers of an episode have.

    >>> derivation_share("(44.1-56.7)/56.7", ["print((44.1 - 56.70) / 2)"])
    1.0
    """
    wanted = numbers_in(derivation)
    found = set().union(*map(numbers_in, texts)) if texts else set()
    return len(wanted & found) / len(wanted) if wanted else 0.0


def numbers_in(text: str) -> set[float]:
    """The numbers in a text, without signs."""
    return {float(number.replace(",", "")) for number in re.findall(r"\d[\d,]{0,20}(?:\.\d{1,10})?", text)}
