"""The images of one pass over samples: each is encoded once, and gets its gradient once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from agent_r1.errors import EngineError
from agent_r1.images import EncodedImage, ImageSpan
from agent_r1.models.vision.encoder import vision_of


class ImagePass:
    """Embeddings of images for the micro-batches of one pass.

        images = ImagePass(policy, apart=True)
        for batch in micro_batches:
            loss(images.rows(batch.image_spans)).backward()
        images.backward()

    Apart, micro-batches get embeddings that are cut off from the tower and the projector: their gradients are added
    up, and `backward` sends the sum through projector and tower once. Otherwise gradients flow through the embeddings
    directly, which one micro-batch can do.
    """

    def __init__(self, model: nn.Module, *, apart: bool = False, trained: bool = True) -> None:
        self._model, self._apart, self._trained = model, apart, trained
        self._made: dict[str, Tensor] = {}
        self._given: dict[str, Tensor] = {}

    @property
    def num_images(self) -> int:
        """How many images were encoded."""
        return len(self._made)

    def rows(self, spans: Sequence[ImageSpan]) -> Tensor:
        """The embeddings of the image tokens of these spans, one after another."""
        images = {span.image.key: span.image for span in spans}
        self._encode([image for key, image in images.items() if key not in self._made])
        return torch.cat([self._given[span.image.key][span.first : span.first + span.length] for span in spans])

    def backward(self) -> None:
        """Send the gradients of all micro-batches through projector and tower; the pass is over."""
        outputs, gradients = list[Tensor](), list[Tensor]()
        for key, embeddings in self._made.items():
            gradient = self._given[key].grad
            if self._apart and embeddings.requires_grad and gradient is not None:
                outputs.append(embeddings)
                gradients.append(gradient.to(embeddings.dtype))
        if outputs:
            torch.autograd.backward(outputs, gradients)
        self._made, self._given = {}, {}

    def _encode(self, images: Sequence[EncodedImage]) -> None:
        if not images:
            return
        vision = vision_of(self._model)
        if vision is None:
            raise EngineError(f"the samples have images, and {type(self._model).__name__} reads none")
        with nullcontext() if self._trained else torch.no_grad():
            encoded = vision.encode(images, keep_features=True)
        for image, embeddings in zip(images, encoded, strict=True):
            self._made[image.key] = embeddings
            leaf = embeddings
            if self._apart and embeddings.requires_grad:
                leaf = embeddings.detach().float().requires_grad_()  # gradients add up in float32
            self._given[image.key] = leaf
