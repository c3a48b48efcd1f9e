"""An image as a model takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from agent_r1.images.ids import image_token_ids
from agent_r1.types import TokenIds


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodedImage:
    """What a model's processor made of one image."""

    key: str
    """The content hash of the picture and the processor's name: equal keys mean equal `inputs`."""
    num_tokens: int
    """How many image tokens it is in a prompt."""
    inputs: Mapping[str, npt.NDArray[Any]]
    """The arguments of the model's `get_image_features` for this image alone, such as `pixel_values`. Those that a
    processor made are held in bounded memory and made again when they are needed later (see `BoundedInputs`)."""
    grid: tuple[int, int] | None = None
    """Rows and columns of its tokens, for models whose positions of image tokens are two-dimensional."""

    def __post_init__(self) -> None:
        image_token_ids(self.key, self.num_tokens)  # refuses a wrong number

    @property
    def token_ids(self) -> TokenIds:
        """The ids of its tokens."""
        return image_token_ids(self.key, self.num_tokens)
