"""Positions for models that place image tokens in two dimensions (multimodal rotary embeddings, Qwen2-VL and later)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from agent_r1.images.store import ImageStore

Positions = npt.NDArray[np.int64]


def rope_positions(token_ids: Sequence[int] | npt.NDArray[np.int64], store: ImageStore) -> Positions:
    """The positions [3, tokens] of a sequence: time, row and column.

    A text token has three equal positions, one more than the largest before it. The tokens of an image all have the
    time at which it begins, and its rows and columns are counted from there: an image of 4 x 4 tokens advances what
    follows by 4.

    >>> from agent_r1.images.encoded import EncodedImage
    >>> store, image = ImageStore(), EncodedImage(key="red square", num_tokens=4, inputs={}, grid=(2, 2))
    >>> store.add(image)
    >>> rope_positions([7, *image.token_ids, 8], store).tolist()
    [[0, 1, 1, 1, 1, 3], [0, 1, 1, 2, 2, 3], [0, 1, 2, 1, 2, 3]]
    """
    positions = np.zeros((3, len(token_ids)), dtype=np.int64)
    next_token, next_position = 0, 0
    for span in store.spans(token_ids):
        if span.image.grid is None or span.first or span.length != span.image.num_tokens:
            raise ValueError("positions in two dimensions need whole images with a grid")
        num_text = span.start - next_token
        positions[:, next_token : span.start] = np.arange(next_position, next_position + num_text)
        next_position += num_text
        rows, columns = span.image.grid
        inside = slice(span.start, span.start + span.length)
        positions[0, inside] = next_position
        positions[1, inside] = next_position + np.repeat(np.arange(rows), columns)
        positions[2, inside] = next_position + np.tile(np.arange(columns), rows)
        next_token = span.start + span.length
        next_position += max(rows, columns)
    num_text = len(token_ids) - next_token
    positions[:, next_token:] = np.arange(next_position, next_position + num_text)
    return positions
