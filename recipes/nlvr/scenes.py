"""The pictures of NLVR, drawn: three boxes of scattered items or of towers, in NLVR's structured form.

A scene is three boxes; a box is a list of items, each `type`, `color`, `size`, `x_loc`, `y_loc` (of its upper left
corner, in a box of 100 x 100 pixels). A tower is a column of squares, its base first.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from PIL import Image, ImageDraw

Item = Mapping[str, Any]
Box = tuple[Item, ...]
Scene = tuple[Box, ...]

BOX_SIZE, NUM_BOXES = 100, 3
SPACING = 150
"""From the left side of a box to that of the next."""
FLOOR, GAP = (211, 211, 211), (128, 128, 128)
COLORS = {"yellow": "Yellow", "black": "Black", "blue": "#0099ff"}
"""The colors' names and what NLVR's files call them."""
NAMES = {spelled: name for name, code in COLORS.items() for spelled in (code, code.lower(), code.upper())}
PAINT = {"yellow": (255, 255, 0), "black": (0, 0, 0), "blue": (0, 153, 255)}
SHAPES = ("circle", "square", "triangle")
SIZES = {10: "small", 20: "medium", 30: "big"}
MAX_BLOCKS, MAX_ITEMS = 4, 8
_TOWER_X, _BLOCK, _BLOCK_STEP = 40, 20, 21
_SMOOTH = 8
"""Shapes are drawn this many times larger and scaled down, which smooths their edges."""
_AT_WALL, _AT_RIGHT_OR_BOTTOM = 0.22, 0.85
"""How often an item stands at one of two opposite walls, and how often that is the right or the bottom one: most of
NLVR's items at a wall are at these."""
_TRIES = 50


def color_of(item: Item) -> str:
    """yellow, black or blue.

    >>> color_of({"color": "#0099ff"})
    'blue'
    """
    code = item["color"]
    return NAMES.get(code) or str(code).lower()


def is_tower(box: Box) -> bool:
    """Whether a box holds a tower: medium squares upon each other in the middle, the first of them on the ground."""
    return bool(box) and all(
        item["type"] == "square"
        and item["size"] == _BLOCK
        and (item["x_loc"], item["y_loc"]) == (_TOWER_X, _level_y(level))
        for level, item in enumerate(box)
    )


def _level_y(level: int) -> int:
    return BOX_SIZE - _BLOCK - level * _BLOCK_STEP


def draw_picture(scene: Scene) -> Image.Image:
    """The picture of a scene, 400 x 100 pixels."""
    picture = Image.new("RGB", (SPACING * (NUM_BOXES - 1) + BOX_SIZE, BOX_SIZE), GAP)
    for number, box in enumerate(scene):
        left = number * SPACING
        picture.paste(FLOOR, (left, 0, left + BOX_SIZE, BOX_SIZE))
        for item in box:
            place = left + int(item["x_loc"]), int(item["y_loc"])
            picture.paste(PAINT[color_of(item)], place, _mask(str(item["type"]), int(item["size"])))
    return picture


@cache
def _mask(shape: str, size: int) -> Image.Image:
    """How much of each pixel a shape covers."""
    large = size * _SMOOTH
    mask = Image.new("L", (large, large), 0)
    pen = ImageDraw.Draw(mask)
    if shape == "square":
        pen.rectangle((0, 0, large, large), fill=255)
    elif shape == "circle":
        pen.ellipse((0, 0, large - 1, large - 1), fill=255)
    else:
        pen.polygon([(large / 2, 0), (0, large - 1), (large - 1, large - 1)], fill=255)
    return mask.resize((size, size), Image.Resampling.BOX)


def random_scene(rng: random.Random, *, towers: bool) -> Scene:
    """A scene of towers, or of scattered items."""
    return tuple(random_tower(rng) if towers else random_box(rng) for _ in range(NUM_BOXES))


def random_tower(rng: random.Random) -> Box:
    """A tower of one to four blocks."""
    return tower(rng.choices(list(COLORS), k=rng.randint(1, MAX_BLOCKS)))


def tower(colors: Sequence[str]) -> Box:
    """A tower of blocks of these colors, its base first."""
    return tuple(
        {
            "type": "square",
            "color": COLORS[color],
            "size": _BLOCK,
            "x_loc": _TOWER_X,
            "y_loc": _level_y(level),
        }
        for level, color in enumerate(colors)
    )


def random_box(rng: random.Random) -> Box:
    """A box of scattered items that do not overlap."""
    box: Box = ()
    # Few of the colors in some boxes, as in the corpus: "a box with items of only one color" is rare otherwise.
    colors = rng.sample(list(COLORS), rng.choice((1, 2, 3, 3)))
    for _ in range(rng.choice((1, 2, 3, 4, 4, 5, 5, 6, 6, 7))):
        box = with_random_item(box, rng, colors) or box
    return box


def with_random_item(box: Box, rng: random.Random, colors: Sequence[str] = tuple(COLORS)) -> Box | None:
    """The box with one more item; None when there is no room."""
    kind, size = rng.choice(SHAPES), rng.choice(list(SIZES))
    return placed(box, {"type": kind, "color": COLORS[rng.choice(colors)], "size": size}, rng)


def placed(box: Box, item: Item, rng: random.Random) -> Box | None:
    """The box with an item somewhere in it: often at a wall, never over another item. None when there is no room."""
    room = BOX_SIZE - int(item["size"])
    for _ in range(_TRIES):
        place = [rng.randint(0, room), rng.randint(0, room)]
        for axis in range(2):
            if rng.random() < _AT_WALL:
                place[axis] = room if rng.random() < _AT_RIGHT_OR_BOTTOM else 0
        new = {**item, "x_loc": place[0], "y_loc": place[1]}
        if not any(_overlap(new, other) for other in box):
            return (*box, new)
    return None


def _overlap(one: Item, other: Item) -> bool:
    apart = [
        one[axis] >= other[axis] + other["size"] or other[axis] >= one[axis] + one["size"]
        for axis in ("x_loc", "y_loc")
    ]
    return not any(apart)


def changed(box: Box, rng: random.Random) -> Box:
    """The box with one small change: an item more or less, or one of another color, shape, size or place. Now and then
    it stays as it is."""
    return _changed_tower(box, rng) if is_tower(box) else _changed_box(box, rng)


def _changed_tower(box: Box, rng: random.Random) -> Box:
    colors = [color_of(item) for item in box]
    change = rng.randrange(4)
    if change == 0 and len(colors) < MAX_BLOCKS:
        colors.append(rng.choice(list(COLORS)))
    elif change == 1 and len(colors) > 1:
        colors.pop()
    else:
        colors[rng.randrange(len(colors))] = rng.choice(list(COLORS))
    return tower(colors)


def _changed_box(box: Box, rng: random.Random) -> Box:
    change = rng.randrange(6)
    if change == 0 or not box:
        return (with_random_item(box, rng) if len(box) < MAX_ITEMS else None) or box
    chosen = rng.randrange(len(box))
    item, others = dict(box[chosen]), box[:chosen] + box[chosen + 1 :]
    if change == 1:
        return others if others else box
    if change == 2:
        item["type"] = rng.choice(SHAPES)
    elif change == 3:
        item["color"] = COLORS[rng.choice(list(COLORS))]
    else:
        if change == 4:
            item["size"] = rng.choice(list(SIZES))
        return placed(others, item, rng) or box
    return (*box[:chosen], item, *box[chosen + 1 :])
