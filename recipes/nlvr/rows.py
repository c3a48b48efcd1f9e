"""What the model of nlvr reads: tasks, captions of boxes, demonstrations.

A demonstration says what the sentence means (its plan), looks at one box after the other, says what is in it and what
that means for the plan (a note), and decides by the notes. In a demonstration without pictures the tool answers with
what is in the box, as text: it teaches what sentences mean, and costs little. Images are PIL images in these rows;
`write_rows` stores them beside the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image

from .meaning import COUNTERS, ItemTest, Meaning, Note, in_corner, walls
from .scenes import SIZES, Box, Item, Scene, color_of, draw_picture, is_tower
from .tools import NUM_BOXES, box_of, crop

CELL = 20
"""Captions give the place of an item as the row and column of a square of this many pixels."""


def prompt(sentence: str, picture: Image.Image) -> list[dict[str, Any]]:
    """The messages an episode begins with."""
    return [_user(picture, _question(sentence))]


def _question(sentence: str) -> str:
    return f"True or false: {sentence}"


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


def caption(box: Box, counted: Sequence[ItemTest] = ()) -> str:
    """All that is in a box: the colors of a tower from the base up, or items in reading order.

    Items that are counted are numbered: "a2" is the second of those that pass the first test.

    >>> caption(({"type": "circle", "color": "Black", "size": 10, "x_loc": 90, "y_loc": 43},), [lambda item: True])
    '24 small black circle right a1'
    """
    if not box:
        return "nothing"
    standing = is_tower(box)
    items = box if standing else sorted(box, key=lambda item: (_cell(item), item["x_loc"], item["y_loc"]))
    numbers, told = [0] * len(counted), []
    for item in items:
        marks = []
        for kind, test in enumerate(counted):
            if test(item):
                numbers[kind] += 1
                marks.append(f"{COUNTERS[kind]}{numbers[kind]}")
        told.append(" ".join([color_of(item) if standing else _item(item), *marks]))
    return " ".join(["tower", *told]) if standing else ", ".join(told)


def _item(item: Item) -> str:
    row, column = _cell(item)
    corner = ["corner"] if in_corner(item) else []
    return " ".join([f"{row}{column}", SIZES[item["size"]], color_of(item), item["type"], *walls(item), *corner])


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
    return _episode(prompt(sentence, picture), lambda number: [_image(box_of(picture, number))], scene, meaning)


def demonstration_in_words(sentence: str, scene: Scene, meaning: Meaning) -> dict[str, Any]:
    """The same episode without pictures: the tool answers with the caption of the box."""
    opening = [{"role": "user", "content": _question(sentence)}]
    return _episode(opening, lambda number: caption(scene[number - 1]), scene, meaning)


def _episode(
    opening: list[dict[str, Any]], answer_of_tool: Callable[[int], Any], scene: Scene, meaning: Meaning
) -> dict[str, Any]:
    messages, words, notes = opening, meaning.plan, []
    for number in range(1, NUM_BOXES + 1):
        function = {"name": crop.name, "arguments": {"box": number}}
        call = {"type": "function", "function": function}
        messages.append({"role": "assistant", "content": words, "tool_calls": [call]})
        messages.append({"role": "tool", "content": answer_of_tool(number)})
        box = scene[number - 1]
        notes.append(meaning.note(box))
        words = " ".join([caption(box, meaning.counted), "=", *meaning.steps(box), str(notes[-1])])
    messages.append({"role": "assistant", "content": f"{words} | {conclusion(meaning, notes)}"})
    return {"messages": messages, "tools": [dict(crop.tool_schema)]}


def conclusion(meaning: Meaning, notes: Sequence[Note]) -> str:
    """The notes of all boxes, what they add up to, what that had to be, whether it is, and the answer:
    "1 1 0 = 2 == 2 yes | true"."""
    tally = meaning.tally(notes)
    verdict, answer = ("yes", "true") if meaning.decide(tally) else ("no", "false")
    return " ".join([*map(str, notes), "=", *map(str, tally), meaning.wanted, verdict, "|", answer])


def _user(picture: Image.Image, text: str) -> dict[str, Any]:
    return {"role": "user", "content": [_image(picture), {"type": "text", "text": text}]}


def _image(picture: Image.Image) -> dict[str, Any]:
    return {"type": "image", "image": picture}
