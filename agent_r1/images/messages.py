"""Pictures in chat messages: every form in which one may be given becomes `{"type": "image", "image": Picture}`.

{"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}     or a path inside the data's folder
{"type": "image", "image": <PIL image, bytes, path, {"bytes", "path"}>}      or under "url" or "path"
{"type": "image"}                                                            the next of the pictures given beside
{"role": "user", "content": "What is this?", "images": [...]}                appended to the message's text
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_r1.errors import ImageError
from agent_r1.images.picture import Picture
from agent_r1.images.reading import read_picture
from agent_r1.types import Message, Observation

_TYPES = frozenset(("image", "image_url", "input_image"))
_KEYS = ("image", "image_url", "url", "path")


def picture_messages(
    messages: Sequence[Message], images: Sequence[Any] = (), *, folder: Path | None = None
) -> tuple[Message, ...]:
    """The messages with pictures in their one form; messages that need no change are the same objects.

    `images` fill parts `{"type": "image"}` in order; those left over are appended to the last message that is not the
    assistant's. Raises `ImageError`, which names message and part.
    """
    remaining = list(images)
    result = tuple(_message(message, index, remaining, folder) for index, message in enumerate(messages))
    if remaining:
        where = "an image beside the messages"
        result = _append_pictures(result, [read_picture(image, folder=folder, where=where) for image in remaining])
    unchanged = all(new is old for new, old in zip(result, messages, strict=True))
    return messages if unchanged and isinstance(messages, tuple) else result


def needs_reading(observation: Observation) -> bool:
    """Whether an observation has images that are not in their one form yet; reading them takes milliseconds each."""
    if observation.messages is None:
        return False
    return bool(observation.images) or any(
        message.get("images") is not None
        or (isinstance(content := message.get("content"), list | tuple) and any(map(_is_unread, content)))
        for message in observation.messages
    )


def normal_observation(observation: Observation) -> Observation:
    """An observation whose pictures are all in its messages, in their one form; the same object where that is so.

    Raises `ImageError` for a picture that cannot be read.
    """
    if observation.messages is None:
        return observation
    messages = picture_messages(observation.messages, observation.images)
    if messages is observation.messages and not observation.images:
        return observation
    return replace(observation, messages=messages, images=())


def pictures_in(messages: Iterable[Message]) -> Iterator[Picture]:
    """The pictures of messages in their one form, in order."""
    for message in messages:
        content = message.get("content")
        if isinstance(content, list | tuple):
            for part in content:
                if isinstance(part, Mapping) and isinstance(part.get("image"), Picture):
                    yield part["image"]


def with_images(text: str, pictures: Sequence[Picture]) -> str | list[dict[str, Any]]:
    """The content of a message: the text alone, or parts: the text, then the pictures.

    >>> with_images("a dot", [])
    'a dot'
    """
    if not pictures:
        return text
    return [*([{"type": "text", "text": text}] if text else []), *map(_part_of, pictures)]


def openai_content(content: Any) -> Any:
    """The content of a message as the OpenAI API has it: pictures as `image_url` parts with `data:` addresses."""
    if not isinstance(content, list | tuple):
        return content
    return [_openai_part(part) for part in content]


def _openai_part(part: Any) -> Any:
    image = part.get("image") if isinstance(part, Mapping) else None
    if not isinstance(image, Picture):
        return part
    address = f"data:image/png;base64,{base64.b64encode(image.png()).decode()}"
    return {"type": "image_url", "image_url": {"url": address}}


def openai_messages(messages: Iterable[Message]) -> list[Message]:
    """The messages with their pictures as the OpenAI API has them. A tool's answer may have text alone there: the
    pictures of answers follow these in a message of the user."""
    result: list[Message] = []
    waiting: list[Any] = []
    for message in picture_messages(tuple(messages)):
        content = openai_content(message.get("content"))
        if message.get("role") != "tool":
            result += [{"role": "user", "content": waiting}] if waiting else []
            waiting = []
        elif isinstance(content, list) and any(_is_address(part) for part in content):
            waiting += [part for part in content if _is_address(part)]
            texts = [part for part in content if not _is_address(part)]
            content = texts or "The image follows."
        result.append(message if content is message.get("content") else {**message, "content": content})
    return [*result, *([{"role": "user", "content": waiting}] if waiting else [])]


def _is_address(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "image_url"


def picture_key(value: object) -> str:
    """For JSON that is a key: a picture is its content hash. A `TypeError` for anything else that JSON cannot hold."""
    if isinstance(value, Picture):
        return value.content_hash
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


def _message(message: Message, index: int, remaining: list[Any], folder: Path | None) -> Message:
    content, beside = message.get("content"), message.get("images")
    if beside is None and not isinstance(content, list | tuple):
        return message
    where = f"message {index}"
    parts = list(content) if isinstance(content, list | tuple) else []
    new = [_part(part, f"{where}, part {number}", remaining, folder) for number, part in enumerate(parts)]
    if beside is not None:
        images = beside if isinstance(beside, list | tuple) else [beside]
        added = [
            read_picture(image, folder=folder, where=f"{where}, image {number}") for number, image in enumerate(images)
        ]
        message = {key: value for key, value in message.items() if key != "images"}
        if isinstance(content, str):
            return {**message, "content": with_images(content, added)}
        new += map(_part_of, added)
    elif all(one is other for one, other in zip(new, parts, strict=True)):
        return message
    return {**message, "content": new}


def _part(part: Any, where: str, remaining: list[Any], folder: Path | None) -> Any:
    if not _is_unread(part):
        return part
    source = next((part[key] for key in _KEYS if part.get(key) is not None), None)
    if isinstance(source, Mapping) and "url" in source:
        source = source["url"]
    if source is None:
        if not remaining:
            raise ImageError(f"{where} is an image without content, and no image is given for it")
        source = remaining.pop(0)
    return _part_of(read_picture(source, folder=folder, where=where))


def _is_unread(part: Any) -> bool:
    """Whether a content part is an image in another form than the one."""
    if not isinstance(part, Mapping) or not (part.get("type") in _TYPES or part.get("image") is not None):
        return False
    return not (isinstance(part.get("image"), Picture) and part.keys() == {"type", "image"})


def _part_of(picture: Picture) -> dict[str, Any]:
    return {"type": "image", "image": picture}


def _append_pictures(messages: tuple[Message, ...], pictures: list[Picture]) -> tuple[Message, ...]:
    """The messages with pictures at the end of the last one that is not the assistant's."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.get("role") == "assistant":
            continue
        content = message.get("content")
        new: Any = with_images(content or "", pictures) if not isinstance(content, list | tuple) else None
        new = [*content, *map(_part_of, pictures)] if new is None else new  # type: ignore[misc]
        return (*messages[:index], {**message, "content": new}, *messages[index + 1 :])
    raise ImageError("there are images beside the messages, but no message that they could belong to")
