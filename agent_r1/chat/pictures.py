"""Images in rendered prompts: the chat template writes one placeholder for each, which becomes the image's tokens.

A template gets image parts as `{"type": "image"}`. Placeholders that others wrote as text are cut like control tokens
(see `control_tokens`), so those in the rendered text are the template's own, in the order of the images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from agent_r1.errors import ChatTemplateError, refuse_media
from agent_r1.images import FIRST_IMAGE_ID, ImageProcessor, Picture, normal_observation, pictures_in
from agent_r1.types import Message, Observation, TokenIds, media_in

_PART = {"type": "image"}
_PROBE = "AGENTR1PROBE"


class PromptImages:
    """Puts images into prompts; for a model that does not see, refuses them."""

    def __init__(self, processor: ImageProcessor | None, chat_template: Callable[[Sequence[Message]], str]) -> None:
        self.processor = processor
        self._text_as_part = processor is not None and not _copies_text(chat_template)

    @property
    def placeholders(self) -> tuple[str, ...]:
        """Texts that stand for an image when the template writes them."""
        return () if self.processor is None else (self.processor.placeholder,)

    def normal(self, observation: Observation, seen: Observation | None = None) -> Observation:
        """The observation with its images in their one form, and with values of its own. Raises `UnsupportedMediaError`
        for what the model does not read; the messages that it shares with `seen` were looked at before."""
        if self.processor is None:
            observation = observation.with_own_values(seen)
            messages = observation.messages or ()
            old = () if seen is None else seen.messages or ()
            new = next((n for n, (one, two) in enumerate(zip(messages, old, strict=False)) if one is not two), len(old))
            refuse_media("the observation", messages[new:], observation.images)
            return observation
        if observation.images and observation.messages is None:
            raise ChatTemplateError("an observation of raw text or ids cannot have images beside it; give messages")
        messages = observation.messages or ()
        if media_in(messages) not in ([], ["image"]):
            refuse_media("the observation", messages)
        return normal_observation(observation).with_own_values(seen)

    def of(self, messages: Sequence[Message]) -> tuple[Picture, ...]:
        """The pictures of messages, in order."""
        return () if self.processor is None else tuple(pictures_in(messages))

    def for_template(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Messages whose image parts are as templates expect them."""
        if self.processor is None:
            return messages
        return [_for_template(message, self._text_as_part) for message in messages]

    def are_shown(self, text: str, pictures: Sequence[Picture]) -> bool:
        """Whether the template wrote as many placeholders as there are pictures."""
        return self.processor is None or text.count(self.processor.placeholder) == len(pictures)

    def expand(self, ids: TokenIds, pictures: Sequence[Picture]) -> TokenIds:
        """The ids with the tokens of the pictures in place of their placeholders."""
        if self.processor is None or not pictures:
            return ids
        placeholder = self.processor.placeholder_id
        if ids.count(placeholder) != len(pictures):
            raise ChatTemplateError(
                f"the rendered prompt has {ids.count(placeholder)} placeholders '{self.processor.placeholder}' for "
                f"{len(pictures)} images"
            )
        expanded, start = list[int](), 0
        for picture in pictures:
            end = ids.index(placeholder, start)
            expanded += ids[start:end]
            expanded += self.processor.prompt_ids(self.processor.encode(picture))
            start = end + 1
        return (*expanded, *ids[start:])

    def collapse(self, ids: TokenIds) -> TokenIds:
        """The ids with one placeholder in place of adjacent image tokens, which no tokenizer can decode."""
        if self.processor is None or not ids or max(ids) < FIRST_IMAGE_ID:
            return ids
        groups = groupby(ids, key=lambda token: token >= FIRST_IMAGE_ID)
        placeholder = self.processor.placeholder_id
        return tuple(token for is_image, group in groups for token in ((placeholder,) if is_image else group))

    def require_shown(
        self, text: str, messages: Sequence[Message], template: Callable[[Sequence[Message]], str]
    ) -> None:
        """Raise `ChatTemplateError` when the template left images out, with the roles whose images it does not show."""
        pictures = self.of(messages)
        if self.processor is None or self.are_shown(text, pictures):
            return
        hidden = dict.fromkeys(str(one["role"]) for one in messages if not self._shows(one, messages, template))
        number, placeholder = text.count(self.processor.placeholder), self.processor.placeholder
        cause = (
            f"it shows no images in messages of role {', '.join(map(repr, hidden))}. Put them into messages of a role "
            "that it shows them in (most templates: 'user'), or give the model a template that shows them"
            if hidden
            else "the model needs another template"
        )
        raise ChatTemplateError(
            f"the model's chat template wrote {number} image placeholders ('{placeholder}') for {len(pictures)} "
            f"images: {cause}"
        )

    def _shows(
        self, message: Message, messages: Sequence[Message], template: Callable[[Sequence[Message]], str]
    ) -> bool:
        """Whether the template shows the images of this one message."""
        pictures = self.of([message])
        if not pictures:
            return True
        try:
            text = template([one if one is message else _without_images(one) for one in messages])
        except ChatTemplateError:
            return True
        return self.are_shown(text, pictures)


def _copies_text(chat_template: Callable[[Sequence[Message]], str]) -> bool:
    """Whether a template shows a content that is plain text. Some read contents as parts only, and write nothing, or
    single letters, for a text."""
    try:
        return _PROBE in chat_template([{"role": "user", "content": _PROBE}])
    except ChatTemplateError:
        return False


def _for_template(message: Message, text_as_part: bool) -> Message:
    content = message.get("content")
    if text_as_part and (content is None or isinstance(content, str)):
        return {**message, "content": [{"type": "text", "text": content or ""}]}
    if not isinstance(content, list | tuple) or not any(map(_is_picture, content)):
        return message
    return {**message, "content": [_PART if _is_picture(part) else part for part in content]}


def _without_images(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return message
    return {**message, "content": [part for part in content if not _is_picture(part)]}


def _is_picture(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("image"), Picture)


def is_plain(message: Message) -> bool:
    """Whether a message is nothing but a role and a content of text and pictures: what can be remembered by value."""
    if message.keys() != {"role", "content"}:
        return False
    content = message["content"]
    return isinstance(content, str) or (isinstance(content, list) and all(map(_is_plain_part, content)))


def _is_plain_part(part: Any) -> bool:
    if not isinstance(part, dict):
        return False
    return (
        part.keys() == {"type", "image"} if _is_picture(part) else all(isinstance(text, str) for text in part.values())
    )


def copy_of(message: Message) -> dict[str, Any]:
    """A copy of a plain message: an environment may change the messages it returned."""
    content = message.get("content")
    return {**message, "content": [dict(part) for part in content]} if isinstance(content, list) else dict(message)


def forms_of(content: Any) -> Iterator[str]:
    """The types of content parts: what a template may depend on."""
    if isinstance(content, list | tuple):
        for part in content:
            yield str(part.get("type")) if isinstance(part, Mapping) else type(part).__name__
