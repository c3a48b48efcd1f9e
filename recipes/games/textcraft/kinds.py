"""Kinds of items that a recipe may ask for instead of one item: `planks` is any planks, `coals` is coal or charcoal."""

from __future__ import annotations

from functools import lru_cache

_WOODS = ("oak", "spruce", "birch", "jungle", "acacia", "dark oak")
_FUNGI = ("crimson", "warped")


def _trunks(wood: str, *parts: str) -> tuple[str, ...]:
    return tuple(f"{prefix}{wood} {part}" for part in parts for prefix in ("", "stripped "))


_LOGS = {f"{wood} logs": _trunks(wood, "log", "wood") for wood in _WOODS}
_STEMS = {f"{fungus} stems": _trunks(fungus, "stem", "hyphae") for fungus in _FUNGI}
_BURNING = tuple(item for items in _LOGS.values() for item in items)

KINDS: dict[str, tuple[str, ...]] = {
    **_LOGS,
    **_STEMS,
    "logs that burn": _BURNING,
    "logs": (*_BURNING, *(item for items in _STEMS.values() for item in items)),
    "planks": tuple(f"{wood} planks" for wood in (*_WOODS, *_FUNGI)),
    "wooden slabs": tuple(f"{wood} slab" for wood in (*_WOODS, *_FUNGI)),
    "coals": ("coal", "charcoal"),
    "sand": ("sand", "red sand"),
    "gold ores": ("gold ore", "nether gold ore"),
    "soul fire base blocks": ("soul sand", "soul soil"),
    "stone crafting materials": ("cobblestone", "blackstone"),
    "stone tool materials": ("cobblestone", "blackstone"),
    "wool": tuple(
        f"{color} wool"
        for color in (
            *("white", "orange", "magenta", "light blue", "yellow", "lime", "pink", "gray", "light gray", "cyan"),
            *("purple", "blue", "brown", "green", "red", "black"),
        )
    ),
}
"""The items of each kind that the game's recipes use."""


@lru_cache(maxsize=4096)
def name_of(options: tuple[str, ...]) -> str:
    """What a recipe calls these items: the item, the kind that has exactly them, or all of them.

    >>> name_of(("coal",)), name_of(("charcoal", "coal")), name_of(("purpur block", "purpur pillar"))
    ('coal', 'coals', 'purpur block or purpur pillar')
    """
    if len(options) == 1:
        return options[0]
    wanted = frozenset(options)
    # `sand` and `red sand` are not called sand, for sand is an item too.
    kind = next((name for name, items in KINDS.items() if frozenset(items) == wanted and name not in items), None)
    return kind or " or ".join(options)
