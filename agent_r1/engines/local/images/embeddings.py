"""Embeddings of images in the engine: each image goes through the tower once, as long as the weights stay."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agent_r1.images import ImageSpan
from agent_r1.models import ByteCache, Vision

CACHE_BYTES = {"cpu": 2**29, "cuda": 2**31}
"""How many bytes of embeddings are kept: 2 GiB are 4,000 images of 256 tokens of a 2B model in bfloat16."""


class ImageEmbeddings:
    """Embeddings of the images of prompts, by their keys.

    One by one, the embeddings of an image do not depend on the images beside it, bit for bit.
    """

    def __init__(self, vision: Vision, *, one_by_one: bool) -> None:
        self._vision, self._one_by_one = vision, one_by_one
        self._cache = ByteCache(CACHE_BYTES.get(vision.device.type, CACHE_BYTES["cpu"]))
        self.family = vision.family
        self.num_encoded = 0
        """How many images went through the tower."""

    def rows(self, spans: Sequence[ImageSpan]) -> Tensor:
        """The embeddings of the image tokens of these spans, one after another."""
        cached = {span.image.key: self._cache.get(span.image.key) for span in spans}
        rows_of = {key: rows for key, rows in cached.items() if rows is not None}
        missing = {span.image.key: span.image for span in spans if span.image.key not in rows_of}
        if missing:
            encoded = self._vision.encode(list(missing.values()), one_by_one=self._one_by_one)
            for key, rows in zip(missing, encoded, strict=True):
                rows_of[key] = rows.clone()  # not a view of a whole batch
                self._cache.put(key, rows_of[key])
            self.num_encoded += len(missing)
        return torch.cat([rows_of[span.image.key][span.first : span.first + span.length] for span in spans])

    def note_weight(self, name: str, before: Tensor, after: Tensor) -> None:
        """Drop all embeddings when a weight of tower or projector is about to change."""
        if self.family.owns(name) and len(self._cache) and not torch.equal(before, after.to(before)):
            self._cache.clear()
