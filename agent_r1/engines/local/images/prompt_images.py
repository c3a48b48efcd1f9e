"""Where the images of a prompt are, and which of their tokens a step computes.

Image tokens are in a request's tokens with the ids that were made from their content, so blocks of the KV cache are
found by content. A step that computes some of them replaces their embeddings by those of the image; a chunk may begin
or end inside an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from agent_r1.errors import EngineRequestError
from agent_r1.images import FIRST_IMAGE_ID, EncodedImage, ImageSpan, image_store, rope_positions
from agent_r1.types import TokenIds

if TYPE_CHECKING:
    from agent_r1.engines.local.request import Chunk

IntArray = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptImages:
    """The images of a prompt."""

    spans: tuple[ImageSpan, ...]
    """The places of the image tokens in the prompt."""
    end: int
    """Where the last one ends: chunks from there on compute text alone."""
    positions: IntArray | None = None
    """[3, prompt] for models that place image tokens in two dimensions."""
    offset: int = 0
    """What is added to the index of a token behind the prompt to get its position."""

    def positions_of(self, start: int, end: int) -> IntArray:
        """The positions [3, end - start] of tokens of the prompt and behind it."""
        assert self.positions is not None
        behind = np.arange(max(start, self.positions.shape[1]), end) + self.offset
        return np.concatenate([self.positions[:, start:end], np.tile(behind, (3, 1))], axis=1)


def find_images(prompt: TokenIds, *, vocabulary: int, two_dimensional: bool) -> PromptImages:
    """The images of a prompt that has image tokens. Raises EngineRequestError when one of them is not known or not
    whole, or when other ids are not in the vocabulary."""
    ids = np.array(prompt, dtype=np.int64)
    text = ids[ids < FIRST_IMAGE_ID]
    if len(text) and not (text.min() >= 0 and text.max() < vocabulary):
        raise EngineRequestError(
            f"the prompt has token ids from {text.min()} to {text.max()} beside image tokens; the model knows 0 to "
            f"{vocabulary - 1}"
        )
    spans = tuple(image_store().spans(ids))
    _refuse_partial_images(spans, two_dimensional=two_dimensional)
    positions = rope_positions(ids, image_store()) if two_dimensional else None
    offset = 0 if positions is None else int(positions[:, -1].max()) + 1 - len(ids)
    return PromptImages(spans=spans, end=spans[-1].start + spans[-1].length, positions=positions, offset=offset)


def _refuse_partial_images(spans: Sequence[ImageSpan], *, two_dimensional: bool) -> None:
    """All tokens of every image are there, in order. Text may be between them, such as the rows and columns of tiles;
    not where positions are those of a grid."""
    image, count = spans[0].image, 0
    for span in spans:
        begins = count in (0, image.num_tokens)
        if span.first if begins else span.image is not image or span.first != count:
            _refuse_part(image if not begins else span.image, span.length if begins else count)
        image, count = span.image, span.first + span.length
        if two_dimensional and span.image.grid is None:
            raise EngineRequestError(
                "the model places image tokens in two dimensions, and the prompt has an image without a grid; encode "
                "it with the model's own processor"
            )
        if two_dimensional and span.length != image.num_tokens:
            _refuse_part(image, span.length)
    if count != image.num_tokens:
        _refuse_part(image, count)


def _refuse_part(image: EncodedImage, count: int) -> None:
    raise EngineRequestError(
        f"the prompt has {count} of the {image.num_tokens} tokens of an image; give all of them in order"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class StepImages:
    """The image tokens of a step."""

    places: IntArray
    """Their rows in the flat row, in order."""
    spans: tuple[ImageSpan, ...]
    """The images they belong to, cut to what the step computes."""
    positions: IntArray | None
    """[3, T]: the positions of all tokens of the step, for models that place image tokens in two dimensions."""


def step_images(chunks: Sequence[Chunk], query_starts: IntArray, positions: IntArray) -> StepImages | None:
    """The image tokens of a step; None when it has none.

    `positions` [T] are counted as in text. Where an image before them advanced the text by less than its number of
    tokens, they are corrected in place.
    """
    spans, places = list[ImageSpan](), list[IntArray]()
    corrected: list[tuple[int, IntArray]] = []
    for row, chunk in zip(query_starts, chunks, strict=False):
        images = chunk.request.images
        if images is None:
            continue
        if images.positions is not None:
            image_positions = images.positions_of(chunk.start, chunk.end)
            positions[row : row + chunk.length] = image_positions[0]
            corrected.append((row, image_positions))
        for part in _cut(images, chunk.start, chunk.end):
            spans.append(part)
            first = row + part.start - chunk.start
            places.append(np.arange(first, first + part.length))
    if not spans:
        return None
    table = None
    if corrected:
        table = np.tile(positions, (3, 1))
        for row, image_positions in corrected:
            table[:, row : row + image_positions.shape[1]] = image_positions
    return StepImages(places=np.concatenate(places), spans=tuple(spans), positions=table)


def has_image_tokens(chunk: Chunk) -> bool:
    """Whether a chunk computes image tokens."""
    images = chunk.request.images
    return images is not None and bool(_cut(images, chunk.start, chunk.end))


def _cut(images: PromptImages, start: int, end: int) -> list[ImageSpan]:
    """What of the images lies between two indices of the request."""
    parts: list[ImageSpan] = []
    if start >= images.end:
        return parts
    for span in images.spans:
        first, last = max(span.start, start), min(span.start + span.length, end)
        if first < last:
            skipped = first - span.start
            parts.append(ImageSpan(image=span.image, start=first, first=span.first + skipped, length=last - first))
    return parts
