"""What sentences mean: a note of each box, and whether the notes make the sentence true.

"There are 2 black circles" notes how many black circles each box has; it holds when they are two together. A meaning
can be followed step by step, so that a small model can learn it. Its plan says it in few words that are always the
same; the steps of a box say what was counted or looked at, and what the plan wants; then the notes are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .phrases import Amount
from .scenes import BOX_SIZE, COLORS, NUM_BOXES, SIZES, Box, Item, Scene, color_of

Note = int | str
Tally = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ItemTest:
    """Whether an item has some properties, and what they are: "small black circle not wall"."""

    told: str
    passes: Callable[[Item], bool]

    def __call__(self, item: Item) -> bool:
        """Whether an item has the properties."""
        return self.passes(item)


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a box's test: the number of items that pass a test, or something that is read off the box."""

    look: Callable[[Box], str]
    """What is read off, such as the color at a tower's top; of items that are counted, their number."""
    wanted: str
    """What it has to be."""
    passes: Callable[[Box], bool]
    name: str = ""
    """What is looked at. Of items that are counted, their test says it."""
    counted: ItemTest | None = None


@dataclass(frozen=True, slots=True)
class BoxTest:
    """Whether a box has a property: it has when it passes all parts."""

    parts: tuple[Part, ...]

    def passes(self, box: Box) -> bool:
        """Whether a box has the property."""
        return all(part.passes(box) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Meaning:
    """A sentence's meaning."""

    told: str
    """What is noted of a box, in few words that are always the same."""
    wanted: str
    """What the notes of all boxes have to add up to."""
    note: Callable[[Box], Note]
    """What matters of a box: a number of items, 1 or 0 for yes or no, or a color."""
    tally: Callable[[Sequence[Note]], Tally]
    """What the notes of all boxes add up to."""
    decide: Callable[[Tally], bool]
    """Whether the sentence is true, given the tally."""
    parts: tuple[Part, ...] = ()
    """What has to be known of a box besides its note."""
    counted: tuple[ItemTest, ...] = ()
    """Which items are counted, for one or more reasons: captions number them."""

    @property
    def plan(self) -> str:
        """The sentence in few words that are always the same: "boxes with a black item >= 2 : == 1"."""
        return f"{self.told} : {self.wanted}"

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
        """What leads to the note of a box: what was counted ("a2": two items of the first kind) or seen, what it had to
        be, and whether it is."""
        names = _names(self.parts)
        return [
            f"{name}{'' if part.counted else ' '}{part.look(box)} {part.wanted} {'yes' if part.passes(box) else 'no'} ,"
            for name, part in zip(names, self.parts, strict=True)
        ]


COUNTERS = "abc"
"""The kinds of items that a sentence counts, in the order in which it names them."""


def _names(parts: Sequence[Part]) -> list[str]:
    letters = iter(COUNTERS)
    return [next(letters) if part.counted else part.name for part in parts]


def total(notes: Sequence[Note]) -> Tally:
    """The sum of notes that are numbers."""
    return (sum(note for note in notes if isinstance(note, int)),)


def most_alike(notes: Sequence[Note]) -> Tally:
    """How many notes are the same, at most."""
    return (max(map(notes.count, notes)),)


def num_nonzero(notes: Sequence[Note]) -> Tally:
    """How many notes are not 0."""
    return (sum(bool(note) for note in notes),)


def num_different(notes: Sequence[Note]) -> Tally:
    """How many different notes there are."""
    return (len(set(notes)),)


def counted_note(what: str, test: ItemTest, tally: Callable[[Sequence[Note]], Tally], amount: Amount) -> Meaning:
    """The note of a box is how many items pass a test."""
    return Meaning(
        f"{what} {COUNTERS[0]} {test.told}",
        str(amount),
        lambda box: sum(map(test, box)),
        tally,
        lambda found: amount.holds(found[0]),
        counted=(test,),
    )


def end_noted(what: str, end: str, tally: Callable[[Sequence[Note]], Tally], amount: Amount) -> Meaning:
    """The note of a box is the color of a tower's base or top."""
    return Meaning(
        f"{what} {end}",
        str(amount),
        lambda box: end_color(box, end),
        tally,
        lambda found: amount.holds(found[0]),
    )


def items_amount(test: ItemTest, amount: Amount) -> Meaning:
    """So many items pass a test."""
    return counted_note("items", test, total, amount)


def boxes_amount(test: BoxTest, amount: Amount) -> Meaning:
    """So many boxes pass a test."""
    told = [
        f"{name} {part.counted.told if part.counted else ''} {part.wanted}"
        for name, part in zip(_names(test.parts), test.parts, strict=True)
    ]
    return Meaning(
        " ".join(f"boxes with {' , '.join(told)}".split()),
        str(amount),
        lambda box: int(test.passes(box)),
        total,
        lambda tally: amount.holds(tally[0]),
        test.parts,
        tuple(part.counted for part in test.parts if part.counted),
    )


def every_box(test: BoxTest) -> Meaning:
    """All three boxes pass a test."""
    return boxes_amount(test, Amount(">=", NUM_BOXES))


def is_like(
    color: str | None = None, shape: str | None = None, size: int | None = None, place: str | None = None
) -> ItemTest:
    """Whether an item has these properties; None stands for any."""

    def passes(item: Item) -> bool:
        return (
            (color is None or is_color(item, color))
            and (shape is None or item["type"] == shape)
            and (size is None or item["size"] == size)
            and (place is None or is_at(item, place))
        )

    words = (SIZES[size] if size else None, color, shape or "item", place)
    return ItemTest(" ".join(word for word in words if word), passes)


def is_color(item: Item, color: str) -> bool:
    """Whether an item has a color: `black`, `not black`, or one of `black or blue`."""
    if color.startswith("not "):
        return not is_color(item, color.removeprefix("not "))
    return color_of(item) in color.split(" or ")


def opposite(place: str) -> str:
    """Everywhere else.

    >>> opposite("wall"), opposite("not wall")
    ('not wall', 'wall')
    """
    return place.removeprefix("not ") if place.startswith("not ") else f"not {place}"


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

    def count(box: Box) -> int:
        return sum(map(test, box))

    return BoxTest(
        (Part(lambda box: str(count(box)), str(amount), lambda box: amount.holds(count(box)), counted=test),)
    )


def _seen(name: str, look: Callable[[Box], str], wanted: str, passes: Callable[[Box], bool]) -> BoxTest:
    """Something that is read off a box is as wanted."""
    return BoxTest((Part(look, wanted, passes, name),))


def both(*tests: BoxTest) -> BoxTest:
    """A box passes all tests."""
    return BoxTest(tuple(part for test in tests for part in test.parts))


def colors(box: Box) -> list[str]:
    """The colors of a box's items; of a tower, from the base up."""
    return [color_of(item) for item in box]


def end_color(box: Box, end: str) -> str:
    """The color of a tower's base or top."""
    return color_of(box[0 if end == "base" else -1]) if box else NONE


def end_is(end: str, color: str) -> BoxTest:
    """The base or the top of a tower has a color."""
    return _seen(end, lambda box: end_color(box, end), f"is {color}", lambda box: end_color(box, end) == color)


def next_to(box: Box, color: str, *, above: bool) -> list[str]:
    """The colors of the blocks right above, or right below, the blocks of a color."""
    pairs = zip(colors(box), colors(box)[1:], strict=False)
    return [up if above else low for low, up in pairs if (low if above else up) == color]


def stacked(lower: str, upper: str) -> BoxTest:
    """A block of one color has one of another right above it."""
    return _seen(
        f"above {lower}",
        lambda box: words(next_to(box, lower, above=True)),
        f"has {upper}",
        lambda box: upper in next_to(box, lower, above=True),
    )


def stacked_at_top(lower: str, upper: str) -> BoxTest:
    """The two highest blocks of a tower have these colors."""
    return _seen(
        "highest two",
        lambda box: words(colors(box)[-2:]),
        f"are {lower} {upper}",
        lambda box: colors(box)[-2:] == [lower, upper],
    )


def beside_another(color: str, *, above: bool) -> BoxTest:
    """A block of a color has one of another color right above it, or right below."""
    return _seen(
        f"{'above' if above else 'below'} {color}",
        lambda box: words(next_to(box, color, above=above)),
        f"has not {color}",
        lambda box: any(found != color for found in next_to(box, color, above=above)),
    )


def run_of(color: str, number: int) -> BoxTest:
    """So many blocks of a color are right above each other."""

    def longest(box: Box) -> int:
        most = length = 0
        for found in colors(box):
            length = length + 1 if found == color else 0
            most = max(most, length)
        return most

    return _seen(f"run {color}", lambda box: str(longest(box)), f">= {number}", lambda box: longest(box) >= number)


def only_colors(*wanted: str) -> BoxTest:
    """The items of a box have exactly these colors."""
    return _seen(
        "colors",
        lambda box: words(_palette(colors(box))),
        f"are {words(_palette(wanted))}",
        lambda box: set(colors(box)) == set(wanted),
    )


def num_colors(number: int) -> BoxTest:
    """The items of a box have so many different colors."""
    return _seen(
        "colors",
        lambda box: f"{words(_palette(colors(box)))} {len(set(colors(box)))}",
        f"== {number}",
        lambda box: len(set(colors(box))) == number,
    )


def _palette(found: Sequence[str]) -> list[str]:
    return [color for color in COLORS if color in found]


def level_is(level: int, color: str) -> BoxTest:
    """A block of a tower, counted from the base, has a color."""
    places = slice(level - 1, level)
    return _seen(
        f"level {level}",
        lambda box: words(colors(box)[places]),
        f"is {color}",
        lambda box: colors(box)[places] == [color],
    )


def run_at_base(color: str, number: int) -> BoxTest:
    """The lowest blocks of a tower have a color."""
    wanted = [color] * number
    return _seen(
        f"lowest {number}",
        lambda box: words(colors(box)[:number]),
        f"are {words(wanted)}",
        lambda box: colors(box)[:number] == wanted,
    )


def above_base(*wanted: str) -> BoxTest:
    """The blocks of a tower above its base have these colors, in any order."""
    return _seen(
        "above base",
        lambda box: words(sorted(colors(box)[1:])),
        f"are {words(sorted(wanted))}",
        lambda box: sorted(colors(box)[1:]) == sorted(wanted),
    )


NONE = "none"


def words(found: Sequence[str]) -> str:
    """Colors that were seen, as text."""
    return " ".join(found) or NONE
