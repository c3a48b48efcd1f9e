"""What a model may answer: a combination of forecasts with an offset, or the 24 numbers themselves.

    <answer>0.5 ar + 0.5 seasonal - 0.2</answer>
    <answer>12.1, 12.0, ... 9.8</answer>

Weights are positive and count relative to their sum, so that `ar + seasonal` is the mean of both. Nothing is evaluated:
the text is split into terms, and a term is a number, a name, or both.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .models import DAY, MODELS, Array

MAX_CHARACTERS = 1000
_TAGS = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_NUMBER = r"\d{1,6}(?:\.\d{0,16})?|\.\d{1,16}"
_TERM = re.compile(rf"(?P<weight>{_NUMBER})?\s*\*?\s*(?P<name>[a-z_]+)|(?P<offset>{_NUMBER})")
_LISTED = re.compile(rf"[-+]?(?:{_NUMBER})")


class AnswerError(ValueError):
    """The answer has not the form of one; the message says what was expected."""


@dataclass(frozen=True, kw_only=True)
class Combination:
    """A weighted mean of forecasts, and a number added to each hour."""

    weights: Mapping[str, float]
    offset: float = 0.0

    def forecast(self, forecasts: Mapping[str, Sequence[float] | Array]) -> Array:
        """The combined forecast."""
        total = sum(self.weights.values())
        parts = [weight / total * np.asarray(forecasts[name]) for name, weight in self.weights.items()]
        result: Array = np.sum(parts, axis=0) + self.offset
        return result

    def __str__(self) -> str:
        several = len(set(self.weights.values())) > 1
        terms = [f"{weight:g} {name}" if several else name for name, weight in self.weights.items()]
        sign = "+" if self.offset > 0 else "-"
        return " + ".join(terms) + (f" {sign} {abs(self.offset):g}" if self.offset else "")


def read_answer(text: str) -> Combination | Array:
    """The answer in the only pair of tags of a text.

    >>> str(read_answer("I take <answer>0.5*ar + .5 ar + mix - 1</answer>"))
    'ar + mix - 1'
    """
    found = _TAGS.findall(text)
    if len(found) != 1:
        raise AnswerError(f"expected one <answer>...</answer>, found {len(found)}")
    inside = found[0].strip()
    return read_combination(inside) if re.search("[a-z]", inside) else read_numbers(inside)


def read_numbers(text: str) -> Array:
    """24 numbers."""
    _check_length(text)
    parts = [part for part in re.split(r"[,;\s]+", text) if part]
    wrong = [part for part in parts if not _LISTED.fullmatch(part)]
    if wrong or len(parts) != DAY:
        found = f"{wrong[0]!r:.40}" if wrong else f"{len(parts)} numbers"
        raise AnswerError(f"expected {DAY} numbers or a combination of models, found {found}")
    return np.array([float(part) for part in parts])


def read_combination(text: str, models: Collection[str] = tuple(MODELS)) -> Combination:
    """Terms joined by + and -. A model may come several times; only an offset may be subtracted."""
    _check_length(text)
    weights: dict[str, float] = {}
    offset = 0.0
    pieces = re.split(r"([-+])", text.strip())
    signs = ["+", *pieces[1::2]]
    terms = pieces[::2]
    if len(terms) > 1 and not terms[0].strip():
        signs, terms = signs[1:], terms[1:]
    for sign, written in zip(signs, terms, strict=True):
        match = _TERM.fullmatch(written.strip())
        if match is None:
            raise AnswerError(f"expected terms such as 0.5 ar, found {written.strip()!r:.40}")
        if match["offset"]:
            offset += float(sign + match["offset"])
            continue
        name, weight = match["name"], float(match["weight"] or 1)
        if name not in models:
            raise AnswerError(f"there is no model {name!r:.40}; known: {', '.join(models)}")
        if sign == "-" or weight == 0:
            raise AnswerError(f"weights are positive; found {sign}{weight:g} {name}")
        weights[name] = weights.get(name, 0.0) + weight
    if not weights:
        raise AnswerError("a combination needs a model")
    return Combination(weights=weights, offset=offset)


def _check_length(text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise AnswerError(f"at most {MAX_CHARACTERS} characters, found {len(text)}")
