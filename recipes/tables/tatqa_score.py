"""Exact match and F1 for TAT-QA, with the scale: 1.2 million, 1,200 thousand and 1,200,000 are one answer.

A number is compared after its scale: rounded to two places as it is written, then multiplied. Other texts are bags of
words, without articles and punctuation, and carry their scale as a word. For several spans F1 is the mean over the best
assignment of answered to gold spans. Numbers that were calculated or counted are right or wrong: their F1 is the exact
match. The rules follow the official metric; they are written anew.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from .cells import read_amount

SCALES = {"": 1.0, "percent": 0.01, "thousand": 1e3, "million": 1e6, "billion": 1e9}
MAX_SPANS, MAX_CHARS = 12, 1500
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = re.compile(r"[^\w\s.%-]|(?<!\d)[.-]|[.-](?!\d)")


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
    targets = [_normal(text, gold_scale) for text in gold]
    spans = [_normal(text, scale) for text in answer]
    exact = float(sorted(map(sorted, targets)) == sorted(map(sorted, spans)))
    return exact, exact if numeric or exact else _best_f1(targets, spans)


def _normal(text: str, scale: str) -> list[str]:
    """The words of a span; a number is one word, which has its scale in it."""
    number = read_amount(text)
    if number is not None:
        factor = 0.01 if "%" in text else SCALES[scale]
        return [f"{round(number, 2) * factor:.4f}"]
    words = _ARTICLES.sub(" ", _PUNCTUATION.sub(" ", text.lower())).split()
    return [*map(_word, words), *([scale] if scale else [])]


def _word(word: str) -> str:
    number = read_amount(word)
    return word if number is None else f"{number:g}"


def _best_f1(targets: Sequence[list[str]], spans: Sequence[list[str]]) -> float:
    scores = [[_bag_f1(target, span) for span in spans] for target in targets]
    if len(spans) < len(targets):
        scores = [list(column) for column in zip(*scores, strict=True)]

    @cache
    def best(row: int, used: int) -> float:
        if row == len(scores):
            return 0.0
        free = (index for index in range(len(scores[row])) if not used >> index & 1)
        return max((scores[row][index] + best(row + 1, used | 1 << index) for index in free), default=0.0)

    return round(best(0, 0) / max(len(targets), len(spans)), 2)


def _bag_f1(target: Sequence[str], span: Sequence[str]) -> float:
    one, other = set(target), set(span)
    common = len(one & other)
    if not common or (_numbers(one) and not _numbers(one) & _numbers(other)):
        return 0.0
    precision, recall = common / len(other), common / len(one)
    return 2 * precision * recall / (precision + recall)


def _numbers(words: set[str]) -> set[str]:
    return {word for word in words if read_amount(word) is not None}


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
