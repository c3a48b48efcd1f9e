"""The world of zoom: cards on a board of nine places, its blurred picture, and what a closer look shows.

A B C       Four cards of different colors, each with a digit. The picture that a task begins with is so coarse that
D E F       only colors can be seen in it; the digits can be read in the picture of one place.
G H I
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from PIL import Image, ImageDraw, ImageFont

PLACES = "ABCDEFGHI"
COLORS = {
    "red": (214, 40, 40),
    "green": (40, 150, 60),
    "blue": (45, 75, 215),
    "yellow": (245, 222, 60),
    "purple": (135, 50, 165),
    "orange": (245, 135, 25),
}
NUM_CARDS = 4

TABLE = (150, 120, 90)
PLACE_SIZE = 96
"""Pixels of one place on each side; everything else is a share of it."""
COARSE_SIZE = 6
"""Pixels of the blurred picture on each side: two per place."""
SHIFTS = (-4, 0, 4)
"""How far from the middle of its place a card may lie, in pixels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A card on the board."""

    color: str
    digit: int
    shift: tuple[int, int]
    """Pixels right and down from the middle of its place."""


@dataclass(frozen=True)
class Scene:
    """A board and the card that is asked for."""

    cards: Mapping[str, Card]
    """By place."""
    place: str
    """Where the card is that the question is about."""

    @property
    def asked(self) -> Card:
        """The card that is asked for."""
        return self.cards[self.place]

    @property
    def question(self) -> str:
        """The text of the user's message."""
        return f"Which digit is on the {self.asked.color} card?"

    def as_row(self) -> dict[str, Any]:
        """The cards as JSON, for the environment."""
        return {
            place: {"color": card.color, "digit": card.digit, "shift": list(card.shift)}
            for place, card in self.cards.items()
        }


def draw_scene(rng: random.Random) -> Scene:
    """A random scene."""
    places = rng.sample(PLACES, NUM_CARDS)
    cards = {
        place: Card(color=color, digit=rng.randrange(10), shift=(rng.choice(SHIFTS), rng.choice(SHIFTS)))
        for place, color in zip(places, rng.sample(list(COLORS), NUM_CARDS), strict=True)
    }
    return Scene(cards, places[0])


def cards_from_row(row: Mapping[str, Any]) -> dict[str, Card]:
    """The cards of `Scene.as_row`."""
    return {
        place: Card(color=card["color"], digit=int(card["digit"]), shift=(card["shift"][0], card["shift"][1]))
        for place, card in row.items()
    }


def close_picture(card: Card | None) -> Image.Image:
    """What one place looks like from near: its card, or the bare table."""
    picture = Image.new("RGB", (PLACE_SIZE, PLACE_SIZE), TABLE)
    if card is None:
        return picture
    middle = (PLACE_SIZE / 2 + card.shift[0], PLACE_SIZE / 2 + card.shift[1])
    pen = ImageDraw.Draw(picture)
    pen.rectangle(_around(middle, 0.44 * PLACE_SIZE), fill=COLORS[card.color])
    pen.ellipse(_around(middle, 0.35 * PLACE_SIZE), fill="white")
    pen.text(middle, str(card.digit), fill="black", font=_font(), anchor="mm")
    return picture


def far_picture(cards: Mapping[str, Card]) -> Image.Image:
    """The whole board from afar: the digits are lost, the colors are not."""
    board = Image.new("RGB", (3 * PLACE_SIZE, 3 * PLACE_SIZE), TABLE)
    for place, card in cards.items():
        row, column = divmod(PLACES.index(place), 3)
        board.paste(close_picture(card), (column * PLACE_SIZE, row * PLACE_SIZE))
    coarse = board.resize((COARSE_SIZE, COARSE_SIZE), Image.Resampling.BOX)
    return coarse.resize((PLACE_SIZE, PLACE_SIZE), Image.Resampling.NEAREST)


def _around(middle: tuple[float, float], radius: float) -> tuple[float, float, float, float]:
    x, y = middle
    return x - radius, y - radius, x + radius, y + radius


@cache
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's own font: nothing is looked up on the machine."""
    return ImageFont.load_default(0.67 * PLACE_SIZE)
