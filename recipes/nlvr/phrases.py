"""Templates of sentences that are written and read: choices, slots and endings.

    there %be <q:count> tower%s [with|that has] a <c:color> block

`[a|b]` is one of the texts, `<name:kind>` a slot with a value of a kind (`SLOTS`), `%s`, `%be` and `%has` follow the
number in the slot before them. `write` fills a template at random; `read` gives the values of a sentence's slots.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

_PIECE = re.compile(r"\[(?P<choices>[^\]]*)\]|<(?P<name>\w+):(?P<kind>\w+)>|%(?P<ending>be|has|s)")
_WORDS = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven"}
_ENDINGS = {"s": ("", "s"), "be": ("is", "are"), "has": ("has", "have")}
_SLIP = 0.03
"""How often an ending does not follow the number."""


@dataclass(frozen=True, slots=True)
class Amount:
    """What a count is compared with: `sign` is ==, >= or <=.

    >>> Amount(">=", 2).holds(3)
    True
    """

    sign: str
    number: int

    def __str__(self) -> str:
        return f"{self.sign} {self.number}"

    def holds(self, count: int) -> bool:
        """Whether a count is such an amount."""
        if self.sign == "==":
            return count == self.number
        return count >= self.number if self.sign == ">=" else count <= self.number


def _amounts() -> dict[str, tuple[Amount, float]]:
    """Amounts by their words, each with how often it is written."""
    found: dict[str, tuple[Amount, float]] = {
        "a": (Amount(">=", 1), 8.0),
        "an": (Amount(">=", 1), 0.0),
        "atleast a": (Amount(">=", 1), 0.2),
        "at least a": (Amount(">=", 1), 0.6),
        "no": (Amount("==", 0), 1.5),
        "exactly a": (Amount("==", 1), 0.1),
        "only a": (Amount("==", 1), 0.1),
        "a single": (Amount("==", 1), 0.2),
        "multiple": (Amount(">=", 2), 0.1),
    }
    for number, word in _WORDS.items():
        share = 1.0 if number < 4 else 0.2
        for text in (word, str(number)):
            found[text] = Amount("==", number), 1.5 * share
            for words, sign, weight in (
                ("at least", ">=", 1.0),
                ("atleast", ">=", 0.3),
                ("minimum", ">=", 0.03),
                ("exactly", "==", 1.2),
                ("only", "==", 0.5),
                ("at most", "<=", 0.3),
                ("not more than", "<=", 0.05),
            ):
                found[f"{words} {text}"] = Amount(sign, number), weight * share
            found[f"more than {text}"] = Amount(">=", number + 1), 0.2 * share
            if number > 1:
                found[f"less than {text}"] = Amount("<=", number - 1), 0.1 * share
    return found


_COLORS: dict[str, tuple[Any, float]] = {color: (color, 1.0) for color in ("yellow", "black", "blue")}
_ENDS = {"base": ("base", 1.0), "bottom": ("base", 0.5), "top": ("top", 1.2)}
_SHAPES: dict[str, tuple[Any, float]] = {
    "item": (None, 2.0),
    "object": (None, 1.0),
    "shape": (None, 0.2),
    "square": ("square", 1.0),
    "circle": ("circle", 1.0),
    "triangle": ("triangle", 1.0),
}
_SIZES = {"": (None, 12.0), "small ": (10, 1.0), "big ": (30, 0.7), "large ": (30, 0.3), "medium ": (20, 0.2)}
_PLACES: dict[str, tuple[Any, float]] = {"": (None, 3.0)}
for _verb, _weight in (("touching", 1.0), ("closely touching", 0.5), ("close to touching", 0.02)):
    for _where, _place, _often in (
        ("the edge", "wall", 1.0),
        ("an edge", "wall", 0.4),
        ("any edge", "wall", 0.3),
        ("the wall", "wall", 1.0),
        ("a wall", "wall", 0.3),
        ("any wall", "wall", 0.1),
        ("the side", "wall", 0.3),
        ("the side of a box", "wall", 0.1),
        ("the edge of a box", "wall", 0.1),
        ("a corner", "corner", 0.5),
        ("the corner", "corner", 0.4),
        ("a box corner", "corner", 0.2),
        ("a corner of a box", "corner", 0.2),
        ("the base", "bottom", 0.6),
        ("the bottom", "bottom", 0.3),
        ("the bottom of a box", "bottom", 0.5),
        ("the bottom edge", "bottom", 0.1),
        ("the top", "top", 0.2),
        ("the top edge", "top", 0.1),
        ("the top of a box", "top", 0.2),
        ("right wall of a box", "right", 0.3),
        ("the right wall", "right", 0.2),
        ("the right edge", "right", 0.1),
        ("left wall of a box", "left", 0.3),
        ("the left wall", "left", 0.2),
        ("the left edge", "left", 0.1),
    ):
        _PLACES[f" {_verb} {_where}"] = _place, 0.5 * _weight * _often
        _PLACES[f" not {_verb} {_where}"] = f"not {_place}", (0.25 if _place == "wall" else 0.03) * _weight * _often

SLOTS: Mapping[str, Mapping[str, tuple[Any, float]]] = {
    "count": _amounts(),
    "number": {text: (n, 1.0 / n) for n, word in _WORDS.items() for text in (word, str(n))},
    "color": _COLORS,
    "maybe_color": {"": (None, 1.0), **{f"{text} ": given for text, given in _COLORS.items()}},
    "end": _ENDS,
    "shape": _SHAPES,
    "maybe_size": _SIZES,
    "place": {text: given for text, given in _PLACES.items() if text},
    "maybe_place": _PLACES,
}
"""The texts of each kind of slot: their values, and how often they are written."""


def write(template: str, rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A sentence of a template, and the values of its slots."""
    values: dict[str, Any] = {}
    plural = False

    def fill(piece: re.Match[str]) -> str:
        nonlocal plural
        if piece["choices"] is not None:
            return _PIECE.sub(fill, rng.choice(piece["choices"].split("|")))
        if piece["ending"]:
            # The verb stands before its number: `_agree` writes it.
            number = plural if rng.random() >= _SLIP else not plural
            return _ENDINGS[piece["ending"]][number] if piece["ending"] == "s" else piece[0]
        texts, weights = _weighted(piece["kind"])
        text = rng.choices(texts, cum_weights=weights)[0]
        values[piece["name"]] = value = SLOTS[piece["kind"]][text][0]
        if piece["kind"] in ("count", "number"):
            plural = (value.number if isinstance(value, Amount) else value) > 1 or text == "no"
        return text

    text = _agree(_PIECE.sub(fill, template), rng)
    return " ".join(text.split()), values


def _agree(text: str, rng: random.Random) -> str:
    """Write the verbs by the first number after them, or the nearest before."""
    many = [word for number, word in _WORDS.items() if number > 1]

    def verb(piece: re.Match[str]) -> str:
        after = text[piece.end() :].split()[:4] or text[: piece.start()].split()[:4]
        plural = any(word in many or word in "234567" for word in after)
        if rng.random() < _SLIP:
            plural = not plural
        return _ENDINGS[piece["ending"]][plural]

    return _PIECE.sub(verb, text)


@cache
def _weighted(kind: str) -> tuple[list[str], list[float]]:
    total, weights = 0.0, []
    for _, weight in SLOTS[kind].values():
        total += weight
        weights.append(total)
    return list(SLOTS[kind]), weights


def read(template: str, sentence: str) -> dict[str, Any] | None:
    """The values of the slots of a sentence that `write` could have written, up to case, spaces and the period; None
    when it is another sentence."""
    if not _required(template) <= {*normal(sentence).split(), normal(f"a{sentence}").split()[0]}:
        return None
    pattern, kinds = _pattern(template)
    # The first letter of a sentence that begins with A is missing in the corpus: "ll towers contain 1 blue block".
    match = pattern.fullmatch(normal(sentence)) or pattern.fullmatch(normal(f"a{sentence}"))
    if match is None:
        return None
    return {name: SLOTS[kind][match[name]][0] for name, kind in kinds.items() if match[name] is not None}


def normal(sentence: str) -> str:
    """A sentence in small letters, without periods and commas and with single spaces.

    >>> normal("There is  a tower. ")
    'there is a tower'
    """
    return " ".join(re.sub("[.,]", " ", sentence.lower()).split())


@cache
def _required(template: str) -> frozenset[str]:
    """Words that every sentence of a template has: to compare them is faster than to compile a pattern."""
    words = _PIECE.sub("?", template).replace(",", "").split()
    return frozenset(word for word in words if word.isalnum())


@cache
def _any_of(kind: str) -> str:
    """A pattern of the texts of a kind of slot, factored by their first words: hundreds of templates compile it."""

    def factored(texts: Sequence[tuple[str, ...]]) -> str:
        rest: dict[str, list[tuple[str, ...]]] = {}
        for first, *words in filter(None, texts):
            rest.setdefault(first, []).append(tuple(words))
        branches = [re.escape(first) + factored(words) for first, words in rest.items()]
        return f"(?:{'|'.join(branches)}){'?' * (() in texts)}" if branches else ""

    return factored([tuple(re.findall(r" ?[^ ]+ ?$| ?[^ ]+", text)) for text in SLOTS[kind]])


@cache
def _pattern(template: str) -> tuple[re.Pattern[str], dict[str, str]]:
    kinds: dict[str, str] = {}

    def translate(text: str) -> str:
        parts, end = [], 0
        for piece in _PIECE.finditer(text):
            parts += [re.escape(text[end : piece.start()]), one(piece)]
            end = piece.end()
        return "".join([*parts, re.escape(text[end:])])

    def one(piece: re.Match[str]) -> str:
        if piece["choices"] is not None:
            return f"(?:{'|'.join(map(translate, piece['choices'].split('|')))})"
        if piece["ending"]:
            return f"(?:{'|'.join(_ENDINGS[piece['ending']])})"
        kinds[piece["name"]] = piece["kind"]
        return f"(?P<{piece['name']}>{_any_of(piece['kind'])})"

    return re.compile(translate(" ".join(template.replace(",", "").split()))), kinds
