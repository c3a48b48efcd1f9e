"""The tool of nlvr: one of the three boxes, as an image."""

from __future__ import annotations

from PIL import Image

from agent_r1.images import pictures_in
from agent_r1.tools import ToolContext, tool

NUM_BOXES = 3


@tool
async def crop(box: int, context: ToolContext) -> Image.Image:
    """Look at one box.

    Args:
        box: 1, 2 or 3, from the left.
    """
    if not 1 <= box <= NUM_BOXES:
        raise ValueError(f"there is no box {box}; the boxes are 1, 2 and 3")
    return box_of(next(iter(pictures_in(context.task.prompt))).pil(), box)


def box_of(picture: Image.Image, box: int) -> Image.Image:
    """A box of NLVR's pictures: squares as high as the picture, half as far apart as they are wide.

    A picture of 400 x 100 pixels has them at 0, 150 and 300.
    """
    left = (box - 1) * 3 * picture.height // 2
    return picture.crop((left, 0, left + picture.height, picture.height))
