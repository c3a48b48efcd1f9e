"""Sentences as people wrote them about NLVR's pictures, each with its meaning.

A sentence is a frame ("there are <q> towers with ...") around a property of a box ("a <c> block at the top"), or a
sentence of its own. All were made after sentences of the training rows; no others were looked at.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from . import meaning as m
from .meaning import Meaning
from .phrases import Amount, read, write
from .properties import (
    AT,
    BOX_PROPERTIES,
    DOWN,
    ONE,
    STACK_PROPERTIES,
    TOWER_PROPERTIES,
    TWO,
    UP,
    Property,
    Values,
    like,
    of_towers_too,
)
from .scenes import NUM_BOXES

WITH = "[with|with|with|that has|which has|having|that have|that contains|that contain|which contains|containing]"
HAS = "[%has|%has|contains|contain]"
_SLIPS = 0.04
"""How often a word has a slip of the finger."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A template and what it means."""

    template: str
    towers: tuple[bool, ...]
    """Whether it is said of towers, of scattered items, or of both."""
    meaning: Callable[[Values], Meaning]
    weight: float = 1.0
    """How often it is written."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence and its meaning."""

    sentence: str
    towers: bool
    meaning: Meaning


GROUP_FRAMES: Sequence[tuple[str, str, float]] = (
    ("[there %be|there %be|there %be|there %be|here %be] <q:count> {group} {WITH} {text}", "count", 7),
    ("<q:count> {group} {HAS} {text}", "count", 1),
    ("<q:count> of the [three |3 |]{groups} {HAS} {text}", "count", 1),
    ("[each|every] [one of the |of the |]{groups} {HAS} {text}", "all", 1),
    ("[all|all the|all 3|all three] {groups} {HAS} {text}", "all", 1),
    ("[the|the] {group} {HAS} {text}", "any", 0.2),
)


def _framed(kind: str, prop: Property) -> Callable[[Values], Meaning]:
    if kind == "all":
        return lambda v: m.every_box(prop.test(v))
    if kind == "any":
        return lambda v: m.boxes_amount(prop.test(v), ONE)
    return lambda v: m.boxes_amount(prop.test(v), v["q"])


def _grouped(group: str, properties: Sequence[Property], towers: tuple[bool, ...], weight: float) -> list[Rule]:
    rules = []
    for frame, kind, often in GROUP_FRAMES:
        for prop in properties:
            plural = f"{group}s" if group == "tower" else "[box|boxes|grey boxes|grey box|grey square]"
            singular = (
                f"{group}%s" if group == "tower" else "[box|boxes|box|boxes|grey box|grey boxes|gray box|grey square]"
            )
            template = frame.format(group=singular, groups=plural, WITH=WITH, HAS=HAS, text=prop.template)
            rules.append(Rule(template, towers, _framed(kind, prop), weight * often * prop.weight))
    return rules


OF_TOWERS = (
    Rule(
        f"there %be <q:count> <c:color> block%s {AT} <e:end>[ of a tower| of the tower| of towers|]",
        (True,),
        lambda v: m.boxes_amount(m.end_is(v["e"], v["c"]), v["q"]),
        14,
    ),
    Rule(
        f"there %be <q:count> <c:color> block%s {AT} <e:end> of a tower with <k:count> block%s",
        (True,),
        lambda v: m.boxes_amount(m.both(m.end_is(v["e"], v["c"]), m.has(v["k"], m.is_like())), v["q"]),
        10,
    ),
    Rule(
        "[a |]<c:color> block [at|as|on] the <e:end>", (True,), lambda v: m.boxes_amount(m.end_is(v["e"], v["c"]), ONE)
    ),
    Rule(
        f"there %be <q:count> <c:color> [block|block|object|square]%s {UP} a <d:color> [block|object|square]",
        (True,),
        lambda v: m.boxes_amount(m.stacked(v["d"], v["c"]), v["q"]),
        10,
    ),
    Rule(
        f"there %be <q:count> <c:color> [block|object|square]%s {DOWN} a <d:color> [block|object|square]",
        (True,),
        lambda v: m.boxes_amount(m.stacked(v["c"], v["d"]), v["q"]),
        4,
    ),
    Rule("there %be <q:count> <c:color> block%s", (True,), lambda v: m.items_amount(m.is_like(v["c"]), v["q"]), 5),
    Rule("there %be <q:count> [block|square|item]%s", (True,), lambda v: m.items_amount(m.is_like(), v["q"]), 1),
    Rule(
        "there %be <q:count> <c:color> tower%s",
        (True,),
        lambda v: m.boxes_amount(m.only_colors(v["c"]), v["q"]),
        3,
    ),
    Rule(
        "there %be <q:count> <c:color> tower%s with <k:count> block%s",
        (True,),
        lambda v: m.boxes_amount(m.both(m.only_colors(v["c"]), m.has(v["k"], m.is_like())), v["q"]),
        2,
    ),
    Rule(
        "there %be <q:count> tower%s [that|where|in which] the second block [from the base |]is <c:color>",
        (True,),
        lambda v: m.boxes_amount(m.level_is(2, v["c"]), v["q"]),
        3,
    ),
    Rule(
        "there %be <q:count> <n:number> block[s|] tower%s [which has|that has|with] <k:count> <c:color> block%s",
        (True,),
        lambda v: m.boxes_amount(
            m.both(m.has(Amount("==", v["n"]), m.is_like()), m.has(v["k"], m.is_like(v["c"]))), v["q"]
        ),
        3,
    ),
    Rule(
        "there %be <q:count> <n:number> block[s|] tower%s [that has|with] only one color",
        (True,),
        lambda v: m.boxes_amount(m.both(m.has(Amount("==", v["n"]), m.is_like()), m.num_colors(1)), v["q"]),
        2,
    ),
    Rule(
        "the <e:end> of [a|the] <n:number> block[s|] tower is <c:color>",
        (True,),
        lambda v: m.boxes_amount(m.both(m.has(Amount("==", v["n"]), m.is_like()), m.end_is(v["e"], v["c"])), ONE),
        3,
    ),
    Rule(
        "the <e:end> of the <q:count> <n:number> block[s|] towers %be <c:color>",
        (True,),
        lambda v: m.boxes_amount(m.both(m.has(Amount("==", v["n"]), m.is_like()), m.end_is(v["e"], v["c"])), v["q"]),
        1,
    ),
    Rule(
        f"the tower with <k:number> blocks has a <c:color> block {AT} <e:end>",
        (True,),
        lambda v: m.boxes_amount(m.both(m.has(Amount("==", v["k"]), m.is_like()), m.end_is(v["e"], v["c"])), ONE),
        3,
    ),
    Rule(
        "there %be <q:count> towers [with|of|that have] the same height",
        (True,),
        lambda v: m.counted_note(m.is_like(), m.most_alike, lambda tally: v["q"].holds(tally[0])),
        2,
    ),
    Rule(
        "there %be <q:count> towers [which has|that have|with] the same <e:end> color",
        (True,),
        lambda v: Meaning(lambda box: m.end_color(box, v["e"]), m.most_alike, lambda tally: v["q"].holds(tally[0])),
        2,
    ),
)
"""Whole sentences about towers."""

OF_ITEMS = (
    Rule(
        "there %be <q:count> <z:maybe_size><c:maybe_color><s:shape>%s<w:maybe_place>",
        (False,),
        lambda v: m.items_amount(like(v), v["q"]),
        60,
    ),
    Rule(
        "<q:count> <z:maybe_size><c:maybe_color><s:shape>%s %be<w:place>",
        (False,),
        lambda v: m.items_amount(like(v), v["q"]),
        10,
    ),
    Rule(
        "[|the ]<c:color> <s:shape>s are<w:place>",
        (False,),
        lambda v: m.items_amount(
            lambda item: m.is_like(v["c"], v["s"])(item) and not m.is_at(item, v["w"]), Amount("==", 0)
        ),
        1,
    ),
    Rule(
        "there %be <q:count> <c:color> or <d:color> <s:shape>%s<w:maybe_place>",
        (False,),
        lambda v: m.items_amount(
            lambda item: m.is_like(v["c"], v["s"], None, v["w"])(item) or m.is_like(v["d"], v["s"], None, v["w"])(item),
            v["q"],
        ),
        5,
    ),
    Rule(
        "there %be <q:count> <s:shape>%s<w:place> that is not <c:color>",
        (False,),
        lambda v: m.items_amount(
            lambda item: m.is_like(None, v["s"], None, v["w"])(item) and not m.is_like(v["c"])(item), v["q"]
        ),
        3,
    ),
    Rule(
        "there %be <q:count> <c:maybe_color><s:shape>%s<w:maybe_place> in [each|every] box",
        (False,),
        lambda v: m.every_box(m.has(v["q"], like(v))),
        6,
    ),
    Rule(
        "all <c:maybe_color><s:shape>s are in the same box",
        (False,),
        lambda v: m.counted_note(
            like(v), lambda notes: (sum(bool(note) for note in notes),), lambda tally: tally == (1,)
        ),
        4,
    ),
    Rule(
        "all [the |]<c:maybe_color><s:shape>s are<w:place>",
        (False,),
        lambda v: m.items_amount(
            lambda item: m.is_like(v["c"], v["s"])(item) and not m.is_at(item, v["w"]), Amount("==", 0)
        ),
        4,
    ),
)
"""Whole sentences about scattered items."""

TOWER_ITEMS = (
    Rule(
        "there %be <q:count> <c:color> square%s[ touching| closely touching] the [wall|base|bottom]",
        (True,),
        lambda v: m.boxes_amount(m.end_is("base", v["c"]), v["q"]),
        2,
    ),
    Rule(
        f"there %be <q:count> <c:color> square%s touching the wall with a <d:color> square {UP} it",
        (True,),
        lambda v: m.boxes_amount(m.both(m.end_is("base", v["c"]), m.level_is(2, v["d"])), v["q"]),
        1,
    ),
    Rule(
        "[there %be |]only <k:number> <c:color> and <j:number> <d:color> [item|square]%s are touching the wall",
        (True,),
        lambda v: Meaning(
            lambda box: m.end_color(box, "base"),
            lambda notes: (notes.count(v["c"]), notes.count(v["d"])),
            lambda tally: tally == (v["k"], v["j"]) and sum(tally) == NUM_BOXES,
        ),
        0.3,
    ),
    Rule(
        "there %be <q:count> <c:color> [square|item|block]%s on top of other [items|squares|blocks]",
        (True,),
        lambda v: m.boxes_amount(m.both(m.has(TWO, m.is_like()), m.end_is("top", v["c"])), v["q"]),
        0.5,
    ),
    Rule(
        "there %be [|a |only ]one color touching the wall",
        (True,),
        lambda v: Meaning(
            lambda box: m.end_color(box, "base"), lambda notes: (len(set(notes)),), lambda tally: tally == (1,)
        ),
        0.5,
    ),
)


@cache
def rules() -> tuple[Rule, ...]:
    """All rules."""
    return (
        *OF_TOWERS,
        *OF_ITEMS,
        *TOWER_ITEMS,
        *_grouped("tower", TOWER_PROPERTIES, (True,), 0.25),
        *_grouped("box", BOX_PROPERTIES, (False,), 0.5),
        *_grouped("box", of_towers_too(BOX_PROPERTIES), (True,), 0.1),
        *_grouped("box", STACK_PROPERTIES, (True,), 0.15),
    )


def understand(sentence: str, *, towers: bool) -> Meaning | None:
    """What a sentence means, said of towers or of scattered items; None when no rule fits."""
    for rule in rules():
        if towers in rule.towers:
            values = read(rule.template, sentence)
            if values is not None:
                return rule.meaning(values)
    return None


def random_statement(rng: random.Random) -> Statement:
    """A sentence that the rules write."""
    chosen, limits = _weighted()
    rule = rng.choices(chosen, cum_weights=limits)[0]
    text, values = write(rule.template, rng)
    return Statement(roughened(text, rng), rng.choice(rule.towers), rule.meaning(values))


@cache
def _weighted() -> tuple[list[Rule], list[float]]:
    limits, total = [], 0.0
    for rule in rules():
        total += rule.weight
        limits.append(total)
    return list(rules()), limits


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
    if rng.random() < 0.7 and not headless:
        text = text[:1].upper() + text[1:]
    return text + "." * (rng.random() < 0.45)


def _slipped(word: str, rng: random.Random) -> str:
    if len(word) < 4:
        return word
    place = rng.randrange(1, len(word) - 2)
    swapped = word[:place] + word[place + 1] + word[place] + word[place + 2 :]
    return rng.choice((swapped, word[:place] + word[place + 1 :], word[:place] + word[place] + word[place:]))
