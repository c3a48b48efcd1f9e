"""What sentences mean: a note of each box, and whether the notes make the sentence true.

"There are 2 black circles" notes how many black circles each box has; it holds when they are two or more together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .phrases import Amount
from .scenes import BOX_SIZE, Box, Item, Scene, color_of

Note = int | str
BoxTest = Callable[[Box], bool]
ItemTest = Callable[[Item], bool]


@dataclass(frozen=True, slots=True)
class Meaning:
    """A sentence's meaning."""

    note: Callable[[Box], Note]
    """What matters of a box: a number of items, 1 or 0 for yes or no, or a color."""
    holds: Callable[[Sequence[Note]], bool]
    """Whether the sentence is true, given the notes of all boxes."""

    def notes(self, scene: Scene) -> list[Note]:
        """The notes of a scene's boxes."""
        return [self.note(box) for box in scene]

    def is_true(self, scene: Scene) -> bool:
        """Whether the sentence is true of a scene."""
        return self.holds(self.notes(scene))


def total(notes: Sequence[Note]) -> int:
    """The sum of notes that are numbers."""
    return sum(note for note in notes if isinstance(note, int))


def items_amount(test: ItemTest, amount: Amount) -> Meaning:
    """So many items pass a test."""
    return Meaning(lambda box: sum(map(test, box)), lambda notes: amount.holds(total(notes)))


def boxes_amount(test: BoxTest, amount: Amount) -> Meaning:
    """So many boxes pass a test."""
    return Meaning(lambda box: int(test(box)), lambda notes: amount.holds(total(notes)))


def every_box(test: BoxTest) -> Meaning:
    """All three boxes pass a test."""
    return Meaning(lambda box: int(test(box)), lambda notes: all(notes))


def is_like(
    color: str | None = None, shape: str | None = None, size: int | None = None, place: str | None = None
) -> ItemTest:
    """Whether an item has these properties; None stands for any."""

    def test(item: Item) -> bool:
        return (
            (color is None or color_of(item) == color)
            and (shape is None or item["type"] == shape)
            and (size is None or item["size"] == size)
            and (place is None or is_at(item, place))
        )

    return test


def walls(item: Item, distance: int = 0) -> list[str]:
    """The walls that an item touches, or is no more than some pixels away from.

    >>> walls({"x_loc": 90, "y_loc": 0, "size": 10})
    ['top', 'right']
    """
    x, y, end = item["x_loc"], item["y_loc"], BOX_SIZE - item["size"]
    touches = {
        "top": y <= distance,
        "bottom": y >= end - distance,
        "left": x <= distance,
        "right": x >= end - distance,
    }
    return [wall for wall, touched in touches.items() if touched]


def is_at(item: Item, place: str) -> bool:
    """Whether an item is at a place: `wall` (any), `corner`, `top`, `bottom`, `left`, `right`, or `not` one of them."""
    if place.startswith("not "):
        return not is_at(item, place.removeprefix("not "))
    touched = walls(item)
    # People saw a corner touched where one of its walls was a pixel away.
    corner = bool(touched) and len(walls(item, distance=1)) > 1
    return {"wall": bool(touched), "corner": corner}.get(place, place in touched)


def has(amount: Amount, test: ItemTest) -> BoxTest:
    """A box has so many items that pass a test."""
    return lambda box: amount.holds(sum(map(test, box)))


def both(*tests: BoxTest) -> BoxTest:
    """A box passes all tests."""
    return lambda box: all(test(box) for test in tests)


def colors(box: Box) -> list[str]:
    """The colors of a box's items; of a tower, from the base up."""
    return [color_of(item) for item in box]


def end_is(end: str, color: str) -> BoxTest:
    """The base or the top of a tower has a color."""
    return lambda box: bool(box) and colors(box)[0 if end == "base" else -1] == color


def stacked(lower: str | None, upper: str | None, *, at_top: bool = False) -> BoxTest:
    """A block of one color has one of another right above it."""

    def test(box: Box) -> bool:
        pairs = list(zip(colors(box), colors(box)[1:], strict=False))
        return any(lower in (None, low) and upper in (None, up) for low, up in (pairs[-1:] if at_top else pairs))

    return test


def run_of(color: str, number: int) -> BoxTest:
    """So many blocks of a color are right above each other."""

    def test(box: Box) -> bool:
        longest = length = 0
        for found in colors(box):
            length = length + 1 if found == color else 0
            longest = max(longest, length)
        return longest >= number

    return test


def only_colors(*wanted: str) -> BoxTest:
    """The items of a box have exactly these colors."""
    return lambda box: set(colors(box)) == set(wanted)


def num_colors(number: int) -> BoxTest:
    """The items of a box have so many different colors."""
    return lambda box: len(set(colors(box))) == number


def level_is(level: int, color: str) -> BoxTest:
    """A block of a tower, counted from the base, has a color."""
    return lambda box: len(box) >= level and colors(box)[level - 1] == color


def run_at_base(color: str, number: int) -> BoxTest:
    """The lowest blocks of a tower have a color."""
    return lambda box: colors(box)[:number] == [color] * number
