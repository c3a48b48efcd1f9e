"""The images that prompts refer to, by the ids of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from agent_r1.errors import EngineRequestError
from agent_r1.images.encoded import EncodedImage
from agent_r1.images.ids import FIRST_IMAGE_ID, image_number, image_token_ids, token_index
from agent_r1.images.memory import InputCache, PictureSources
from agent_r1.images.picture import Picture


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageSpan:
    """Adjacent image tokens of one image in a sequence: `length` of them from `start` on, the first of which is token
    `first` of the image."""

    image: EncodedImage
    start: int
    first: int
    length: int


class ImageStore:
    """Images by the ids of their tokens.

    >>> store = ImageStore()
    >>> image = EncodedImage(key="red square", num_tokens=3, inputs={})
    >>> store.add(image)
    >>> [(span.start, span.first, span.length) for span in store.spans([7, *image.token_ids, 8])]
    [(1, 0, 3)]
    """

    def __init__(self, sources: PictureSources | None = None, inputs: InputCache | None = None) -> None:
        self._images: dict[int, EncodedImage] = {}
        self.sources = sources or PictureSources()
        """The pictures that processors encoded."""
        self.inputs = inputs or InputCache()
        """What processors made of them."""

    def add(self, image: EncodedImage) -> None:
        """Make an image known. Adding it again changes nothing."""
        known = self._images.setdefault(image_number(image.token_ids[0]), image)
        if known.key != image.key:
            raise EngineRequestError(
                f"two different images have the same token ids ({known.key} and {image.key}); change a pixel of one"
            )

    def get(self, key: str) -> EncodedImage | None:
        """The image with this key, if it is known."""
        image = self._images.get(image_number(image_token_ids(key, 1)[0]))
        return image if image is not None and image.key == key else None

    def find(self, token_id: int) -> EncodedImage:
        """The image that an image token belongs to."""
        image = self._images.get(image_number(token_id))
        if image is None or token_index(token_id) >= image.num_tokens:
            raise EngineRequestError(f"the prompt has the image token {token_id}, whose image is not known here")
        return image

    def picture(self, image: EncodedImage) -> Picture:
        """The picture that a processor made an image of."""
        return self.sources.get(image.key.partition(":")[0])

    def spans(self, token_ids: Sequence[int] | npt.NDArray[np.int64]) -> list[ImageSpan]:
        """Where image tokens are in a sequence, in order; empty for a sequence of text."""
        ids = np.asarray(token_ids, dtype=np.int64)
        where = np.flatnonzero(ids >= FIRST_IMAGE_ID)
        if not len(where):
            return []
        # A span ends where the next image token is not the next one of the same image.
        numbers = ids[where]
        breaks = np.flatnonzero((np.diff(where) != 1) | (np.diff(numbers) != 1)) + 1
        return [
            ImageSpan(
                image=self.find(int(ids[part[0]])),
                start=int(part[0]),
                first=token_index(int(ids[part[0]])),
                length=len(part),
            )
            for part in np.split(where, breaks)
        ]


@cache
def image_store() -> ImageStore:
    """The store of this process. Ids are made from content, so all models of a process can share it."""
    return ImageStore()
