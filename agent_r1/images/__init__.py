"""Images as part of a prompt: what they are, the token ids that stand for them, and where these tokens are.

A model reads an image as a run of *image tokens*. In a prompt each of them has an id above every vocabulary
(`FIRST_IMAGE_ID` and up) that is made from the content of its image: equal ids mean equal images, so whatever compares,
shares or records prompts by their ids stays exact. Only the look-up of embeddings resolves them, through `ImageStore`.

What computes with arrays is loaded on first use: pictures in messages and files need no numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from agent_r1.errors import ImageError
from agent_r1.images.compact import compact_ids, expand_ids, has_image_ids, picture_numbers
from agent_r1.images.folder import PictureFolder, is_content_hash
from agent_r1.images.ids import FIRST_IMAGE_ID, MAX_IMAGE_TOKENS, image_token_ids, is_image_id
from agent_r1.images.messages import (
    needs_reading,
    normal_observation,
    openai_content,
    openai_messages,
    picture_key,
    picture_messages,
    pictures_in,
    with_images,
)
from agent_r1.images.picture import Picture
from agent_r1.images.reading import ImageLimits, read_picture

if TYPE_CHECKING:
    from agent_r1.images.encoded import EncodedImage
    from agent_r1.images.families import FAMILIES
    from agent_r1.images.positions import rope_positions
    from agent_r1.images.processor import (
        ImageProcessor,
        is_vision_model,
        load_image_processor,
        model_file,
        read_model_json,
    )
    from agent_r1.images.store import ImageSpan, ImageStore, image_store

_HOMES = {
    "encoded": ("EncodedImage",),
    "families": ("FAMILIES",),
    "positions": ("rope_positions",),
    "processor": ("ImageProcessor", "is_vision_model", "load_image_processor", "model_file", "read_model_json"),
    "store": ("ImageSpan", "ImageStore", "image_store"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "FAMILIES",
    "FIRST_IMAGE_ID",
    "MAX_IMAGE_TOKENS",
    "EncodedImage",
    "ImageError",
    "ImageLimits",
    "ImageProcessor",
    "ImageSpan",
    "ImageStore",
    "Picture",
    "PictureFolder",
    "compact_ids",
    "expand_ids",
    "has_image_ids",
    "image_store",
    "image_token_ids",
    "is_content_hash",
    "is_image_id",
    "is_vision_model",
    "load_image_processor",
    "model_file",
    "needs_reading",
    "normal_observation",
    "openai_content",
    "openai_messages",
    "picture_key",
    "picture_messages",
    "picture_numbers",
    "pictures_in",
    "read_model_json",
    "read_picture",
    "rope_positions",
    "with_images",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'agent_r1.images' has no attribute '{name}'")
    return getattr(importlib.import_module(f"agent_r1.images.{_HOME_OF[name]}"), name)
