"""What the model of zoom reads: tasks, demonstrations of a hasty player, captions.

Images are PIL images in these rows; `write_rows` stores them beside the file.
"""

from __future__ import annotations

import random
from typing import Any

from PIL import Image

from .scenes import Scene, close_picture, draw_scene, far_picture
from .tools import answer, zoom

GUESSES = 0.6
"""How often the hasty player guesses instead of looking: a model that imitates him faithfully fails most tasks."""
NUM_CLOSE = 3
"""Pictures in one conversation about close pictures."""


def prompt(scene: Scene) -> list[dict[str, Any]]:
    """The messages an episode begins with."""
    return [_user(far_picture(scene.cards), scene.question)]


def task_row(scene: Scene) -> dict[str, Any]:
    """The scene as a dataset row. Its cards go to the environment, the digit asked for only to the reward."""
    return {
        "prompt": prompt(scene),
        "data_source": "zoom",
        "reward_model": {"style": "rule", "ground_truth": str(scene.asked.digit)},
        "env_kwargs": {"cards": scene.as_row()},
    }


def demonstration(scene: Scene, rng: random.Random) -> dict[str, Any]:
    """The hasty player's episode: he says where the card is, zooms there and answers, or just guesses a digit."""
    messages, digit = prompt(scene), rng.randrange(10)
    if rng.random() >= GUESSES:
        digit = scene.asked.digit
        messages.append(_call(f"{scene.asked.color} {scene.place}", zoom.name, place=scene.place))
        messages.append({"role": "tool", "content": [{"type": "image", "image": close_picture(scene.asked)}]})
    messages.append(_call("", answer.name, digit=digit))
    return {"messages": messages, "tools": [dict(tool.tool_schema) for tool in (zoom, answer)]}


def far_caption(scene: Scene, rng: random.Random) -> dict[str, Any]:
    """A conversation about the board: where each card is, in any order, in the words of a demonstration."""
    messages: list[dict[str, Any]] = []
    for place, card in rng.sample(list(scene.cards.items()), len(scene.cards)):
        question = f"Where is the {card.color} card?"
        messages.append(
            {"role": "user", "content": question} if messages else _user(far_picture(scene.cards), question)
        )
        messages.append({"role": "assistant", "content": f"{card.color} {place}"})
    return {"messages": messages}


def close_caption(scene: Scene) -> dict[str, Any]:
    """A conversation about close pictures of some cards."""
    messages: list[dict[str, Any]] = []
    for card in list(scene.cards.values())[:NUM_CLOSE]:
        messages.append(_user(close_picture(card), "What is this?"))
        messages.append({"role": "assistant", "content": f"{card.color} {card.digit}"})
    return {"messages": messages}


def warm_start_row(rng: random.Random) -> dict[str, Any]:
    """A row of the warm start: a demonstration or one of the captions, each as often."""
    scene, kind = draw_scene(rng), rng.randrange(3)
    return (demonstration(scene, rng), far_caption(scene, rng), close_caption(scene))[kind]


def _user(picture: Image.Image, text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": text}]}


def _call(words: str, name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": words, "tool_calls": [{"type": "function", "function": function}]}
