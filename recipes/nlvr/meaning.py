"""What sentences mean: a note of each box, and whether the notes make the sentence true.

"There are 2 black circles" notes how many black circles each box has; it holds when they are two together. A meaning
can be followed step by step, so that a small model can learn it: which items are counted, what is looked at for the
note, and what the notes add up to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .phrases import Amount
from .scenes import BOX_SIZE, COLORS, NUM_BOXES, Box, Item, Scene, color_of

Note = int | str
Tally = tuple[int, ...]
ItemTest = Callable[[Item], bool]


@dataclass(frozen=True, slots=True)
class Counted:
    """Part of a box's test: the number of items that pass a test."""

    test: ItemTest


@dataclass(frozen=True, slots=True)
class Seen:
    """Part of a box's test: something that is read off the box, such as the color at a tower's top."""

    look: Callable[[Box], str]


@dataclass(frozen=True, slots=True)
class BoxTest:
    """Whether a box has a property, and what has to be known of the box to tell."""

    passes: Callable[[Box], bool]
    parts: tuple[Counted | Seen, ...]


@dataclass(frozen=True, slots=True)
class Meaning:
    """A sentence's meaning."""

    note: Callable[[Box], Note]
    """What matters of a box: a number of items, 1 or 0 for yes or no, or a color."""
    tally: Callable[[Sequence[Note]], Tally]
    """What the notes of all boxes add up to."""
    decide: Callable[[Tally], bool]
    """Whether the sentence is true, given the tally."""
    parts: tuple[Counted | Seen, ...] = ()
    """What has to be known of a box besides its note."""
    counted: tuple[ItemTest, ...] = ()
    """Which items are counted, for one or more reasons: captions number them."""

    def notes(self, scene: Scene) -> list[Note]:
        """The notes of a scene's boxes."""
        return [self.note(box) for box in scene]

    def holds(self, notes: Sequence[Note]) -> bool:
        """Whether the sentence is true, given the notes of all boxes."""
        return self.decide(self.tally(notes))

    def is_true(self, scene: Scene) -> bool:
        """Whether the sentence is true of a scene."""
        return self.holds(self.notes(scene))

    def steps(self, box: Box) -> list[str]:
        """What leads to the note of a box: final counts ("a2": two items of the first kind) and what is seen."""
        letters = iter(COUNTERS)
        return [
            f"{next(letters)}{sum(map(part.test, box))}" if isinstance(part, Counted) else part.look(box)
            for part in self.parts
        ]


COUNTERS = "abc"
"""The kinds of items that a sentence counts, in the order in which it names them."""


def total(notes: Sequence[Note]) -> Tally:
    """The sum of notes that are numbers."""
    return (sum(note for note in notes if isinstance(note, int)),)


def most_alike(notes: Sequence[Note]) -> Tally:
    """How many notes are the same, at most."""
    return (max(map(notes.count, notes)),)


def counted_note(test: ItemTest, tally: Callable[[Sequence[Note]], Tally], decide: Callable[[Tally], bool]) -> Meaning:
    """The note of a box is how many items pass a test."""
    return Meaning(lambda box: sum(map(test, box)), tally, decide, counted=(test,))


def items_amount(test: ItemTest, amount: Amount) -> Meaning:
    """So many items pass a test."""
    return counted_note(test, total, lambda tally: amount.holds(tally[0]))


def boxes_amount(test: BoxTest, amount: Amount) -> Meaning:
    """So many boxes pass a test."""
    counted = tuple(part.test for part in test.parts if isinstance(part, Counted))
    return Meaning(lambda box: int(test.passes(box)), total, lambda tally: amount.holds(tally[0]), test.parts, counted)


def every_box(test: BoxTest) -> Meaning:
    """All three boxes pass a test."""
    return boxes_amount(test, Amount(">=", NUM_BOXES))


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
    x, y, end = item["x_loc"], item["y_loc"], BOX_SIZE - item["size"] - distance
    touches = (("top", y <= distance), ("bottom", y >= end), ("left", x <= distance), ("right", x >= end))
    return [wall for wall, touched in touches if touched]


def in_corner(item: Item) -> bool:
    """Whether an item touches a corner: people saw it touched where one of its walls was a pixel away."""
    return bool(walls(item)) and len(walls(item, distance=1)) > 1


def is_at(item: Item, place: str) -> bool:
    """Whether an item is at a place: `wall` (any), `corner`, `top`, `bottom`, `left`, `right`, or `not` one of them."""
    if place.startswith("not "):
        return not is_at(item, place.removeprefix("not "))
    if place == "corner":
        return in_corner(item)
    touched = walls(item)
    return bool(touched) if place == "wall" else place in touched


def has(amount: Amount, test: ItemTest) -> BoxTest:
    """A box has so many items that pass a test."""
    return BoxTest(lambda box: amount.holds(sum(map(test, box))), (Counted(test),))


def both(*tests: BoxTest) -> BoxTest:
    """A box passes all tests."""
    return BoxTest(
        lambda box: all(test.passes(box) for test in tests), tuple(part for test in tests for part in test.parts)
    )


def colors(box: Box) -> list[str]:
    """The colors of a box's items; of a tower, from the base up."""
    return [color_of(item) for item in box]


def end_color(box: Box, end: str) -> str:
    """The color of a tower's base or top."""
    return color_of(box[0 if end == "base" else -1]) if box else NONE


def end_is(end: str, color: str) -> BoxTest:
    """The base or the top of a tower has a color."""
    return BoxTest(lambda box: end_color(box, end) == color, (Seen(lambda box: end_color(box, end)),))


def next_to(box: Box, color: str, *, above: bool) -> list[str]:
    """The colors of the blocks right above, or right below, the blocks of a color."""
    pairs = zip(colors(box), colors(box)[1:], strict=False)
    return [up if above else low for low, up in pairs if (low if above else up) == color]


def stacked(lower: str, upper: str) -> BoxTest:
    """A block of one color has one of another right above it."""
    return BoxTest(
        lambda box: upper in next_to(box, lower, above=True),
        (Seen(lambda box: words(next_to(box, lower, above=True))),),
    )


def stacked_at_top(lower: str, upper: str) -> BoxTest:
    """The two highest blocks of a tower have these colors."""
    return BoxTest(lambda box: colors(box)[-2:] == [lower, upper], (Seen(lambda box: words(colors(box)[-2:])),))


def beside_another(color: str, *, above: bool) -> BoxTest:
    """A block of a color has one of another color right above it, or right below."""
    return BoxTest(
        lambda box: any(found != color for found in next_to(box, color, above=above)),
        (Seen(lambda box: words(next_to(box, color, above=above))),),
    )


def run_of(color: str, number: int) -> BoxTest:
    """So many blocks of a color are right above each other."""

    def longest(box: Box) -> int:
        most = length = 0
        for found in colors(box):
            length = length + 1 if found == color else 0
            most = max(most, length)
        return most

    return BoxTest(lambda box: longest(box) >= number, (Seen(lambda box: str(longest(box))),))


def only_colors(*wanted: str) -> BoxTest:
    """The items of a box have exactly these colors."""
    return BoxTest(lambda box: set(colors(box)) == set(wanted), (Seen(_palette),))


def num_colors(number: int) -> BoxTest:
    """The items of a box have so many different colors."""
    return BoxTest(lambda box: len(set(colors(box))) == number, (Seen(_palette),))


def _palette(box: Box) -> str:
    found = colors(box)
    return words([color for color in COLORS if color in found])


def level_is(level: int, color: str) -> BoxTest:
    """A block of a tower, counted from the base, has a color."""
    places = slice(level - 1, level)
    return BoxTest(lambda box: colors(box)[places] == [color], (Seen(lambda box: words(colors(box)[places])),))


def run_at_base(color: str, number: int) -> BoxTest:
    """The lowest blocks of a tower have a color."""
    return BoxTest(
        lambda box: colors(box)[:number] == [color] * number, (Seen(lambda box: words(colors(box)[:number])),)
    )


def above_base(*wanted: str) -> BoxTest:
    """The blocks of a tower above its base have these colors, in any order."""
    return BoxTest(lambda box: sorted(colors(box)[1:]) == sorted(wanted), (Seen(lambda box: words(colors(box)[1:])),))


NONE = "none"


def words(found: Sequence[str]) -> str:
    """Colors that were seen, as text."""
    return " ".join(found) or NONE
