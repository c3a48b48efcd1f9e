"""Properties of boxes in NLVR's words ("a <c> block at the top"), each with its test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import meaning as m
from .phrases import Amount

Values = dict[str, Any]
ONE, TWO = Amount(">=", 1), Amount(">=", 2)
UP = "[over|above|on|on top of|right on top of|right above|directly above|stacked on]"
DOWN = "[below|under|right below|underneath]"
AT = "[at the|at the|as the|on the|at|in the]"


@dataclass(frozen=True, slots=True)
class Property:
    """A template of a box's property and its test."""

    template: str
    test: Callable[[Values], m.BoxTest]
    weight: float = 1.0


def like(v: Values, n: str = "") -> m.ItemTest:
    """The test of the items that `_desc(n)` describes."""
    return m.is_like(v.get(f"c{n}"), v.get(f"s{n}"), v.get(f"z{n}"), v.get(f"w{n}"))


def _desc(n: str = "") -> str:
    return f"<k{n}:count> <z{n}:maybe_size><c{n}:maybe_color><s{n}:shape>%s"


TOWER_PROPERTIES = (
    Property(f"[a|a|1|one] <c:color> block {AT} <e:end>", lambda v: m.end_is(v["e"], v["c"]), 5),
    Property(f"<c:color> block%s {AT} <e:end>", lambda v: m.end_is(v["e"], v["c"]), 1),
    Property("a <c:color> <e:end>", lambda v: m.end_is(v["e"], v["c"])),
    Property("<c:color> <e:end>s", lambda v: m.end_is(v["e"], v["c"]), 0.3),
    Property("<k:count> <c:maybe_color>[block|object|item]%s", lambda v: m.has(v["k"], m.is_like(v["c"])), 5),
    Property("<c:color> blocks", lambda v: m.has(ONE, m.is_like(v["c"])), 0.5),
    Property(
        f"<k:count> block%s [with|having|which has|that has|and] a <c:color> block {AT} <e:end>",
        lambda v: m.both(m.has(v["k"], m.is_like()), m.end_is(v["e"], v["c"])),
        2,
    ),
    Property(
        "<k:count> [block|object]%s which %be <c:color>",
        lambda v: m.both(m.has(v["k"], m.is_like()), m.only_colors(v["c"])),
    ),
    Property(f"a <c:color> block {UP} a <d:color> block", lambda v: m.stacked(v["d"], v["c"]), 3),
    Property(f"a <c:color> block {DOWN} a <d:color> block", lambda v: m.stacked(v["c"], v["d"]), 1),
    Property(f"a <c:color> block {UP} a <d:color> block at the top", lambda v: m.stacked_at_top(v["d"], v["c"]), 0.2),
    Property(f"a <c:color> block {DOWN} a <d:color> block at the top", lambda v: m.stacked_at_top(v["c"], v["d"]), 0.2),
    Property(
        f"a <c:color> block {UP} [a different colored|another color] block",
        lambda v: m.beside_another(v["c"], above=False),
        0.2,
    ),
    Property(
        f"a <c:color> block {DOWN} [a different colored|another color] block",
        lambda v: m.beside_another(v["c"], above=True),
        0.2,
    ),
    Property(
        f"<k:count> block%s [which has|with|having] a <c:color> block {UP} a <d:color> block",
        lambda v: m.both(m.has(v["k"], m.is_like()), m.stacked(v["d"], v["c"])),
        0.3,
    ),
    Property(
        "<k:number> <c:color> block%s [stacked together|stacked|stacked on each other|in a row|next to each other]",
        lambda v: m.run_of(v["c"], v["k"]),
        0.6,
    ),
    Property(
        "<k:count> <c:color> block%s and <j:count> <d:color> block%s",
        lambda v: m.both(m.has(v["k"], m.is_like(v["c"])), m.has(v["j"], m.is_like(v["d"]))),
    ),
    Property(
        "a <c:color> block, a <d:color> block and a <f:color> block",
        lambda v: m.both(*(m.has(ONE, m.is_like(v[name])) for name in "cdf")),
        0.5,
    ),
    Property("only <c:color> and <d:color> [blocks|items]", lambda v: m.only_colors(v["c"], v["d"]), 0.6),
    Property("only <c:color> [blocks|items]", lambda v: m.only_colors(v["c"]), 0.6),
    Property("only one color", lambda v: m.num_colors(1), 0.5),
    Property("<n:number> [different |]colors", lambda v: m.num_colors(v["n"]), 0.3),
    Property(
        "a <c:color> <e:end> and a <d:color> [block|object] [at the|on] top",
        lambda v: m.both(m.end_is(v["e"], v["c"]), m.end_is("top", v["d"])),
        0.5,
    ),
    Property("a <c:color> second block", lambda v: m.level_is(2, v["c"]), 0.2),
    Property("<k:number> <c:color> blocks as the base and second blocks", lambda v: m.run_at_base(v["c"], 2), 0.2),
    Property("no <c:color> block[s|]", lambda v: m.has(Amount("==", 0), m.is_like(v["c"])), 0.5),
)
"""Of towers, after "a tower with"."""

_ANY_ITEM = "[item|item|object|block]"
STACK_PROPERTIES = (
    Property(
        f"<k:count> {_ANY_ITEM}%s and [a |the |]<c:color> [one|item|block] [|is ][on top|at the top]",
        lambda v: m.both(m.has(v["k"], m.is_like()), m.end_is("top", v["c"])),
        2,
    ),
    Property(
        f"<k:count> {_ANY_ITEM}%s and a <c:color> [one|item] touching the wall",
        lambda v: m.both(m.has(v["k"], m.is_like()), m.end_is("base", v["c"])),
    ),
    Property("a <c:color> [item|square|block] on top", lambda v: m.end_is("top", v["c"])),
    Property("<k:count> <c:maybe_color>[item|object|block|square]%s", lambda v: m.has(v["k"], m.is_like(v["c"])), 2),
    Property(
        "<k:count> <c:color> [item|square]%s not touching the wall",
        lambda v: m.has(v["k"], m.is_like(v["c"], place="not wall")),
        0.3,
    ),
    Property(
        f"a <c:color> [item|square] touching the wall and a <d:color> [item|square|one] {UP} it",
        lambda v: m.both(m.end_is("base", v["c"]), m.level_is(2, v["d"])),
        0.5,
    ),
    Property(
        "a <c:color> [item|square] touching the wall and another one on top of it all",
        lambda v: m.both(m.has(TWO, m.is_like()), m.end_is("base", v["c"]), m.end_is("top", v["c"])),
        0.2,
    ),
    Property(
        "a <c:color> item touching the wall with a <d:color> and <f:color> item on top of it",
        lambda v: m.both(m.end_is("base", v["c"]), m.above_base(v["d"], v["f"])),
        0.2,
    ),
)
"""Of towers, after "a box with"."""

BOX_PROPERTIES = (
    Property(f"{_desc()}", lambda v: m.has(v["k"], like(v)), 4),
    Property(f"{_desc()}<w:place>", lambda v: m.has(v["k"], like(v)), 3),
    Property(f"{_desc()} and {_desc('1')}", lambda v: m.both(m.has(v["k"], like(v)), m.has(v["k1"], like(v, "1"))), 3),
    Property(
        f"{_desc()}, {_desc('1')} and {_desc('2')}",
        lambda v: m.both(*(m.has(v[f"k{n}"], like(v, n)) for n in ("", "1", "2"))),
        0.7,
    ),
    Property(
        "<k:count> <c:color> and <j:count> <d:color> [item|object]%s",
        lambda v: m.both(m.has(v["k"], m.is_like(v["c"])), m.has(v["j"], m.is_like(v["d"]))),
    ),
    Property("[items of |objects of |]only <c:color> [items|objects|color|colour]", lambda v: m.only_colors(v["c"])),
    Property(
        "[items of |objects of |]only <c:color> and <d:color> [items|objects|color|colour]",
        lambda v: m.only_colors(v["c"], v["d"]),
        1.5,
    ),
    Property("[items|objects] of only one color", lambda v: m.num_colors(1)),
    Property("[items|objects] of the same color", lambda v: m.num_colors(1), 0.3),
    Property("[items|objects] of [all |]<n:number> different colors", lambda v: m.num_colors(v["n"])),
    Property(
        "[items|objects] of <n:number> different colors and a <c:color> <s:shape>",
        lambda v: m.both(m.num_colors(v["n"]), m.has(ONE, m.is_like(v["c"], v["s"]))),
        0.5,
    ),
    Property(
        "<k:count> [item|object]%s of [all |]<n:number> different colors",
        lambda v: m.both(m.has(v["k"], m.is_like()), m.num_colors(v["n"])),
    ),
    Property(
        "<k:count> [item|object]%s of [only |]<c:color> and <d:color> [color|colour]",
        lambda v: m.both(m.has(v["k"], m.is_like()), m.only_colors(v["c"], v["d"])),
        1.5,
    ),
    Property(
        "<k:count> [item|object]%s and [the |]<j:number> %be <c:color>",
        lambda v: m.both(m.has(v["k"], m.is_like()), m.has(Amount("==", v["j"]), m.is_like(v["c"]))),
    ),
    Property(
        "<k:count> [item|object]%s and [the |]<j:number> %be<w:place>",
        lambda v: m.both(m.has(v["k"], m.is_like()), m.has(Amount("==", v["j"]), m.is_like(place=v["w"]))),
        0.5,
    ),
    Property(
        "<k:count> [item|object]%s [one of which is|and one of them is] a <c:maybe_color><s:shape>",
        lambda v: m.both(m.has(v["k"], m.is_like()), m.has(ONE, like(v))),
    ),
    Property(
        "<k:count> <c:color> and <d:color> [items|objects]",
        lambda v: m.both(m.has(v["k"], m.is_like()), m.only_colors(v["c"], v["d"])),
        0.5,
    ),
    Property(
        "<k:count> [item|object]%s which %be <c:color>",
        lambda v: m.both(m.has(v["k"], m.is_like()), m.has(ONE, m.is_like(v["c"]))),
        0.5,
    ),
)
"""Of boxes of scattered items, after "a box with". Some are said of towers too."""


def of_towers_too(properties: Sequence[Property]) -> list[Property]:
    """The properties that say nothing of shapes, sizes and walls."""
    return [prop for prop in properties if not any(kind in prop.template for kind in (":shape", ":place"))]
