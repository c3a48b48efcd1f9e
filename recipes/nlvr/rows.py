"""What the model of nlvr reads: tasks, captions of boxes, demonstrations.

A demonstration looks at one box after the other, says what is in it and what that means for the sentence (a note), and
decides by the notes. Images are PIL images in these rows; `write_rows` stores them beside the file.
"""

from __future__ import annotations

import random
from typing import Any

from PIL import Image

from .meaning import Meaning, walls
from .scenes import SIZES, Box, Item, Scene, color_of, draw_picture, is_tower
from .tools import NUM_BOXES, box_of, crop

CELL = 20
"""Captions give the place of an item as the row and column of a square of this many pixels."""


def prompt(sentence: str, picture: Image.Image) -> list[dict[str, Any]]:
    """The messages an episode begins with."""
    return [_user(picture, f"True or false: {sentence}")]


def task_row(sentence: str, picture: Image.Image, label: str, **extra_info: Any) -> dict[str, Any]:
    """A sentence about a picture as a dataset row."""
    return {
        "prompt": prompt(sentence, picture),
        "data_source": "nlvr",
        "reward_model": {"style": "rule", "ground_truth": label},
        "env_kwargs": {},
        "extra_info": extra_info,
    }


def synthetic_row(sentence: str, scene: Scene, label: bool) -> dict[str, Any]:
    """A sentence about a drawn scene as a dataset row."""
    return task_row(sentence, draw_picture(scene), str(label).lower(), split="train", identifier="drawn")


def caption(box: Box) -> str:
    """All that is in a box: the colors of a tower from the base up, or items in reading order.

    >>> caption(({"type": "circle", "color": "Black", "size": 10, "x_loc": 90, "y_loc": 43},))
    '24 small black circle right'
    """
    if is_tower(box):
        return " ".join(["tower", *map(color_of, box)])
    return ", ".join(_item(item) for item in sorted(box, key=lambda item: (_cell(item), item["x_loc"]))) or "nothing"


def _item(item: Item) -> str:
    row, column = _cell(item)
    return " ".join([f"{row}{column}", SIZES[item["size"]], color_of(item), item["type"], *walls(item)])


def _cell(item: Item) -> tuple[int, int]:
    """The row and the column of an item's middle."""
    half = item["size"] // 2
    return (item["y_loc"] + half) // CELL, (item["x_loc"] + half) // CELL


def caption_row(boxes: list[tuple[Image.Image, Box]]) -> dict[str, Any]:
    """A conversation about pictures of boxes."""
    messages: list[dict[str, Any]] = []
    for picture, box in boxes:
        messages.append(_user(picture, "What is in the box?"))
        messages.append({"role": "assistant", "content": caption(box)})
    return {"messages": messages}


def demonstration(sentence: str, picture: Image.Image, scene: Scene, meaning: Meaning) -> dict[str, Any]:
    """An episode that looks at every box, notes what matters of it and answers by the notes."""
    messages, words = prompt(sentence, picture), ""
    notes = meaning.notes(scene)
    for number in range(1, NUM_BOXES + 1):
        function = {"name": crop.name, "arguments": {"box": number}}
        call = {"type": "function", "function": function}
        messages.append({"role": "assistant", "content": words, "tool_calls": [call]})
        messages.append({"role": "tool", "content": [_image(box_of(picture, number))]})
        words = f"{caption(scene[number - 1])} = {notes[number - 1]}"
    answer = str(meaning.holds(notes)).lower()
    messages.append({"role": "assistant", "content": f"{words} | {' '.join(map(str, notes))} | {answer}"})
    return {"messages": messages, "tools": [dict(crop.tool_schema)]}


def guess(sentence: str, picture: Image.Image, rng: random.Random) -> dict[str, Any]:
    """An episode that answers at once, without a look, and is right half of the time."""
    answer = {"role": "assistant", "content": rng.choice(("true", "false"))}
    return {"messages": [*prompt(sentence, picture), answer], "tools": [dict(crop.tool_schema)]}


def _user(picture: Image.Image, text: str) -> dict[str, Any]:
    return {"role": "user", "content": [_image(picture), {"type": "text", "text": text}]}


def _image(picture: Image.Image) -> dict[str, Any]:
    return {"type": "image", "image": picture}
