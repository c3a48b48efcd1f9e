"""The tools of zoom: a closer look, which returns an image, and the answer, which ends the episode."""

from __future__ import annotations

from PIL import Image

from agent_r1.tools import ToolContext, tool

from .scenes import PLACES, cards_from_row, close_picture


@tool
async def zoom(place: str, context: ToolContext) -> Image.Image:
    """Look at one place.

    Args:
        place: A to I.
    """
    if place not in PLACES or len(place) != 1:
        raise ValueError(f"there is no place {place!r}; the places are A to I")
    return close_picture(cards_from_row(context.task.env_kwargs["cards"]).get(place))


@tool
async def answer(digit: int) -> str:
    """Say the digit.

    Args:
        digit: 0 to 9.
    """
    return f"You said {digit}."
