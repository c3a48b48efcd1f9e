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
from .wording import reworded, roughened

WITH = "[with|with|with|that has|which has|having|that have|that contains|that contain|which contains|containing]"
HAS = "[%has|%has|contains|contain]"
_JOINED = 0.2
"""How often a sentence joins two properties that no rule has together."""


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
        lambda v: m.counted_note("alike", m.is_like(), m.most_alike, v["q"]),
        2,
    ),
    Rule(
        "there %be <q:count> towers [which has|that have|with] the same <e:end> color",
        (True,),
        lambda v: m.end_noted("alike", v["e"], m.most_alike, v["q"]),
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
        lambda v: m.items_amount(m.is_like(v["c"], v["s"], None, m.opposite(v["w"])), Amount("==", 0)),
        1,
    ),
    Rule(
        "there %be <q:count> <c:color> or <d:color> <s:shape>%s<w:maybe_place>",
        (False,),
        lambda v: m.items_amount(m.is_like(f"{v['c']} or {v['d']}", v["s"], None, v["w"]), v["q"]),
        5,
    ),
    Rule(
        "there %be <q:count> <s:shape>%s<w:place> that is not <c:color>",
        (False,),
        lambda v: m.items_amount(m.is_like(f"not {v['c']}", v["s"], None, v["w"]), v["q"]),
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
        lambda v: m.counted_note("filled", like(v), m.num_nonzero, Amount("==", 1)),
        4,
    ),
    Rule(
        "all [the |]<c:maybe_color><s:shape>s are<w:place>",
        (False,),
        lambda v: m.items_amount(m.is_like(v["c"], v["s"], None, m.opposite(v["w"])), Amount("==", 0)),
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
            f"count {v['c']} {v['d']} base",
            f"== {v['k']} {v['j']}",
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
        lambda v: m.end_noted("different", "base", m.num_different, Amount("==", 1)),
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
        *_grouped("tower", of_towers_too(BOX_PROPERTIES), (True,), 0.04),
        *_grouped("box", TOWER_PROPERTIES, (True,), 0.03),
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
    text, towers, meaning = _of_a_rule(rng)
    return Statement(roughened(text, rng), towers, meaning)


def varied_statement(rng: random.Random) -> Statement:
    """A sentence of a rule, or of two properties, often with other words for the same. Not all can be read."""
    text, towers, meaning = _of_two_properties(rng) if rng.random() < _JOINED else _of_a_rule(rng)
    blocks = towers and not any(word in text for word in ("box", "square"))
    return Statement(roughened(reworded(text, rng, blocks=blocks), rng), towers, meaning)


def _of_a_rule(rng: random.Random) -> tuple[str, bool, Meaning]:
    chosen, limits = _weighted()
    rule = rng.choices(chosen, cum_weights=limits)[0]
    text, values = write(rule.template, rng)
    return text, rng.choice(rule.towers), rule.meaning(values)


_OF_A_TOWER = "there %be <q:count> <c:color> block%s {AT} <e:end> of [a|the] tower {WITH} "
_JOINTS = (" and ", " and ", " and ", ", ", " with ", " which has ", " that has ", " having ", " but ")


def _of_two_properties(rng: random.Random) -> tuple[str, bool, Meaning]:
    towers = rng.random() < 0.75
    properties = [*TOWER_PROPERTIES, *STACK_PROPERTIES] if towers else BOX_PROPERTIES
    weights = [prop.weight**0.5 for prop in properties]
    group = "tower" if towers and rng.random() < 0.8 else "box"
    while True:
        one, other = rng.choices(properties, weights, k=2)
        if group == "tower" and rng.random() < 0.2:
            text, values = write(_OF_A_TOWER.format(AT=AT, WITH=WITH), rng)
            test = m.end_is(values["e"], values["c"])
            joint, count = " ", values["q"]
        else:
            frame, kind, _ = rng.choices(GROUP_FRAMES, [often for _, _, often in GROUP_FRAMES])[0]
            nouns = {"group": f"{group}%s", "groups": "towers" if group == "tower" else "boxes"}
            text, values = write(frame.format(**nouns, WITH=WITH, HAS=HAS, text=one.template), rng)
            test = one.test(values)
            joint = rng.choice(_JOINTS)
            count = {"all": Amount(">=", NUM_BOXES), "any": ONE}.get(kind) or values["q"]
        more, more_values = write(other.template, rng)
        test = m.both(test, other.test(more_values))
        told = [part.counted.told if part.counted else part.name for part in test.parts]
        if len(set(told)) == len(told) <= 3:
            return " ".join(f"{text}{joint}{more}".split()), towers, m.boxes_amount(test, count)


@cache
def _weighted() -> tuple[list[Rule], list[float]]:
    limits, total = [], 0.0
    for rule in rules():
        total += rule.weight
        limits.append(total)
    return list(rules()), limits
