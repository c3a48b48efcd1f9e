"""Other words for the same: people wrote more ways than templates have, and not without slips."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

_REWORDED = 0.25
"""How often a sentence has other words than its template."""
_SLIPS = 0.1
"""How often it has a slip of the finger."""

_VERBS = ("with", "having", "has", "have", "that has", "that have", "which has", "contains", "containing")
_SAME: Sequence[tuple[str, ...]] = (
    _VERBS,
    _VERBS,
    ("at the", "on the", "as the", "in the", "for the"),
    ("at least", "atleast", "minimum", "not less than"),
    ("exactly", "only", "just", "exact"),
    ("over", "above", "on top of", "upon", "right above", "directly on top of"),
    ("below", "under", "beneath", "underneath"),
    ("closely touching", "touching", "nearly touching", "close to", "near", "attached to"),
    ("item", "object", "shape"),
    ("items", "objects", "shapes"),
    ("different", "distinct"),
    ("color", "colour"),
    ("there are", "there is", "here are", "we have"),
    ("there is", "there are", "here is", "this is", "there exists"),
    ("each", "every", "each one of the", "each of the"),
)
_SAME_OF_TOWERS = (
    ("block", "item", "object", "square", "brick", "box"),
    ("blocks", "items", "objects", "squares", "bricks", "boxes"),
    ("tower", "tower", "stack", "towers"),
    ("towers", "tower", "stacks"),
)
_SMALL_WORDS = ("a", "the", "of", "there", "that", "which")
_VOWELS = "aeiou"


def reworded(text: str, rng: random.Random, *, blocks: bool) -> str:
    """A sentence, now and then in other words. `blocks`: it is said of towers and speaks of no other boxes."""
    while rng.random() < _REWORDED:
        if rng.random() < 0.3:
            text = _without_small_word(text, rng)
        else:
            text = _with_other_word(text, rng.choice((*_SAME, *(_SAME_OF_TOWERS if blocks else ()))), rng)
    return text


def _with_other_word(text: str, same: Sequence[str], rng: random.Random) -> str:
    # The square of "grey square" is a box.
    found = [match for word in set(same) for match in re.finditer(rf"(?<!grey )(?<!gray )\b{word}\b", text)]
    if not found:
        return text
    chosen = rng.choice(sorted(found, key=lambda match: match.span()))
    return text[: chosen.start()] + rng.choice(same) + text[chosen.end() :]


def _without_small_word(text: str, rng: random.Random) -> str:
    words = text.split()
    # Not the first: it may be the only thing that says how many.
    places = [place for place, word in enumerate(words) if place > 2 and word in _SMALL_WORDS]
    if places:
        del words[rng.choice(places)]
    return " ".join(words)


def roughened(text: str, rng: random.Random) -> str:
    """A sentence as people left it: with or without a capital and a period, now and then with a slip of the finger. The
    corpus has lost the first letter of sentences that begin with A."""
    headless = text.startswith("a")
    text = text[headless:].strip()
    if rng.random() < _SLIPS:
        words = text.split()
        place = rng.randrange(len(words))
        words[place] = _slipped(words[place], rng)
        text = " ".join(words)
    elif rng.random() < _SLIPS / 10:
        spaces = [place for place, letter in enumerate(text) if letter == " "]
        place = rng.choice(spaces)
        text = text[:place] + text[place + 1 :]
    if rng.random() < 0.7 and not headless:
        text = text[:1].upper() + text[1:]
    return text + "." * (rng.random() < 0.45)


def _slipped(word: str, rng: random.Random) -> str:
    if len(word) < 4:
        return word
    place = rng.randrange(1, len(word) - 2)
    swapped = word[:place] + word[place + 1] + word[place] + word[place + 2 :]
    other = word[:place] + (rng.choice(_VOWELS) if word[place] in _VOWELS else "") + word[place + 1 :]
    return rng.choice((swapped, other, word[:place] + word[place + 1 :], word[:place] + word[place] + word[place:]))
