"""Prompts as servers take them: one placeholder per image, and the images beside the ids.

In a prompt of this library an image is a run of ids that are made from its content, with what the model has around
them. A server expands the placeholder itself, with the processor of its own copy of the model's folder. What it made of
the prompt must be what the trainer reads (`ServerPrompt.expanded`); adapters compare it with what the server reports.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agent_r1.errors import EngineRequestError
from agent_r1.images import (
    ImageProcessor,
    ImageSpan,
    Picture,
    has_image_ids,
    image_store,
    is_image_id,
    load_image_processor,
)
from agent_r1.types import TokenIds


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerPrompt:
    """A prompt for a server."""

    token_ids: TokenIds
    """What is sent: one placeholder per image."""
    expanded: TokenIds
    """What the model must read: one placeholder per token of an image."""
    pictures: tuple[Picture, ...] = ()
    """The images, in the order of their placeholders."""

    @classmethod
    def of_text(cls, token_ids: Sequence[int]) -> ServerPrompt:
        """A prompt without images."""
        ids = tuple(token_ids)
        return cls(token_ids=ids, expanded=ids)

    def followed_by(self, sampled: Sequence[int]) -> ServerPrompt:
        """The prompt and what was sampled after it."""
        if not sampled:
            return self
        return replace(self, token_ids=(*self.token_ids, *sampled), expanded=(*self.expanded, *sampled))

    def addresses(self) -> list[str]:
        """The images as data URLs."""
        return [f"data:image/png;base64,{base64.b64encode(picture.png()).decode()}" for picture in self.pictures]


class ServerImages:
    """Makes prompts with images for the servers of one model."""

    def __init__(self, processor: ImageProcessor) -> None:
        self._processor = processor

    @classmethod
    def of_model(cls, path: str) -> ServerImages | None:
        """For the model in a folder or on the hub; None for a model that reads none."""
        processor = load_image_processor(path)
        return None if processor is None else cls(processor)

    @property
    def family(self) -> str:
        """The `model_type` of the model."""
        return self._processor.family

    @property
    def placeholder_id(self) -> int:
        """The id that stands for an image."""
        return self._processor.placeholder_id

    def prompt(self, token_ids: Sequence[int]) -> ServerPrompt:
        """The prompt for a server. Raises `EngineRequestError` for one with a part of an image, or with the placeholder
        as text: a server would take that for an image."""
        ids = tuple(token_ids)
        if not has_image_ids(ids):
            return ServerPrompt.of_text(ids)
        server_ids, pictures, end = list[int](), list[Picture](), 0
        for span in image_store().spans(ids):
            if span.start < end:
                continue
            start, whole, picture = self._image(span)
            if start < end or ids[start : start + len(whole)] != whole:
                raise EngineRequestError(
                    f"the prompt has a part of an image of {span.image.num_tokens} tokens, or not what the model has "
                    "around it; a server takes whole images alone"
                )
            server_ids += [*ids[end:start], self.placeholder_id]
            pictures.append(picture)
            end = start + len(whole)
        server_ids += ids[end:]
        if server_ids.count(self.placeholder_id) != len(pictures):
            raise EngineRequestError(
                f"the prompt has the model's image token {self._processor.placeholder!r} as text beside "
                f"{len(pictures)} images, and a server would take it for another one; use engine=local"
            )
        expanded = tuple(self.placeholder_id if is_image_id(token) else token for token in ids)
        return ServerPrompt(token_ids=tuple(server_ids), expanded=expanded, pictures=tuple(pictures))

    def image_ids(self, picture: Picture) -> TokenIds:
        """What an image is in a prompt of this library."""
        return self._processor.prompt_ids(self._processor.encode(picture))

    def _image(self, span: ImageSpan) -> tuple[int, TokenIds, Picture]:
        """Where an image that begins with this span begins, with what is around it; its ids, and its picture."""
        picture = image_store().picture(span.image)
        whole = self.image_ids(picture)
        before = next(index for index, token in enumerate(whole) if is_image_id(token))
        return span.start - before, whole, picture
