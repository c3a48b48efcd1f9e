"""Image tokens of micro-batches: where they are, and their positions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from agent_r1.errors import DataError
from agent_r1.images import FIRST_IMAGE_ID, ImageSpan, image_store, rope_positions

Ids = npt.NDArray[np.int64]
Member = tuple[int, Any, Ids | slice]
"""A sample in a micro-batch: its row, its token ids, and where these are in the row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchImages:
    """The image tokens of a micro-batch."""

    spans: tuple[ImageSpan, ...]
    """The images they belong to, in order of their places."""
    places: Tensor
    """[tokens]: their flat indices in the micro-batch, in order."""
    positions: Tensor | None
    """[3, rows, width]: the positions of all tokens, for models that place image tokens in two dimensions."""


def take_images(input_ids: Ids, depths: Ids | None, members: Iterable[Member]) -> BatchImages | None:
    """The image tokens of padded rows [rows, width], None without any; their ids become 0, which no one reads.

    `depths` [rows, width] are the positions of text, columns by default.
    """
    flat = input_ids.reshape(-1)
    places = np.flatnonzero(flat >= FIRST_IMAGE_ID)
    if not len(places):
        return None
    spans = tuple(image_store().spans(flat))
    flat[places] = 0
    positions = None
    if any(span.image.grid is not None for span in spans):
        table = np.arange(input_ids.shape[1])[None] if depths is None else depths
        positions = np.tile(table, (3, 1, 1)) if depths is not None else np.tile(table, (3, len(input_ids), 1))
        for row, token_ids, where in members:
            positions[:, row, where] = rope_positions(token_ids, image_store())
    return BatchImages(
        spans=spans,
        places=torch.from_numpy(places),
        positions=None if positions is None else torch.from_numpy(positions),
    )


def refuse_image_targets(targets: Tensor) -> None:
    """Raise `DataError` when a token that the model should predict is an image token."""
    if len(targets) and int(targets.max()) >= FIRST_IMAGE_ID:
        raise DataError("an action has an image in it; a model writes text, so images belong into prompts")
