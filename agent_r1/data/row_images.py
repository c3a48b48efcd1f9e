"""Images of data rows: read from messages and from the columns `image` and `images`, and stored beside files of rows.

A row's messages may have images as `agent_r1/images/messages.py` says; paths are relative to the folder of the data
file and stay inside it. Images of a column replace the marks `<image>` in the text of the prompt, in order; in a prompt
without marks they stand before the text of its last user message.

    {"prompt": "<image>Find x.", "images": ["images/triangle.png"], "answer": 7}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_r1.errors import UnsupportedMediaError
from agent_r1.images import Picture, PictureFolder, picture_messages, read_picture
from agent_r1.types import Message, media_in

MARK = "<image>"
"""Where an image of a column stands in the text of a prompt."""
IMAGE_COLUMNS = ("image", "images")
OTHER_COLUMNS = ("video", "videos", "audio", "audios")
_FOLDER = "images"
_NO_TEXT = frozenset(("image", "image_url", "images"))


def row_images(row: Mapping[str, Any]) -> list[Any]:
    """The images of a row's columns."""
    images: list[Any] = []
    for column in IMAGE_COLUMNS:
        value = row.get(column)
        images += value if isinstance(value, list | tuple) else [] if value is None or value == "" else [value]
    return images


def has_images(row: Mapping[str, Any], messages: Sequence[Message]) -> bool:
    """Whether a row has images. Raises `UnsupportedMediaError` for video and audio, which no model reads."""
    kinds = media_in([*messages, {column: row.get(column) or None for column in OTHER_COLUMNS}])
    others = [kind for kind in kinds if kind != "image"]
    if others:
        raise UnsupportedMediaError(
            f"the row holds {' and '.join(others)} content, which no model of Agent-R1 reads: only text and images are "
            "supported. Describe it in text, or leave it out"
        )
    return bool(kinds) or bool(row_images(row))


def with_row_images(messages: Sequence[Message], images: Sequence[Any], folder: Path | None) -> tuple[Message, ...]:
    """The messages with all images read: those inside them, and `images` in the places of the marks. An `ImageError` or
    `ValueError` says what is wrong."""
    pictures = [read_picture(image, folder=folder, where=f"image {i} of the row") for i, image in enumerate(images)]
    normal = picture_messages(messages, folder=folder)
    return _place_pictures(normal, pictures) if pictures else normal


def without_images(value: Any) -> Any:
    """Messages as they are checked for values that JSON does not have, which images may be."""
    if isinstance(value, Mapping):
        return {key: None if key in _NO_TEXT else without_images(entry) for key, entry in value.items()}
    return [without_images(entry) for entry in value] if isinstance(value, list | tuple) else value


def _place_pictures(messages: tuple[Message, ...], pictures: list[Picture]) -> tuple[Message, ...]:
    marks = sum(text.count(MARK) for message in messages for text in _texts(message))
    if not marks:
        users = [index for index, message in enumerate(messages) if message["role"] == "user"]
        place = users[-1] if users else len(messages) - 1
        content = messages[place].get("content") or ""
        after = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        changed = {**messages[place], "content": [*map(_part, pictures), *after]}
        return (*messages[:place], changed, *messages[place + 1 :])
    if marks != len(pictures):
        raise ValueError(
            f"the row has {len(pictures)} images, but {marks} marks {MARK} in its prompt; it needs one mark per image, "
            "or none"
        )
    remaining = list(pictures)
    return tuple(_fill_marks(message, remaining) if any(MARK in text for text in _texts(message)) else message
                 for message in messages)  # fmt: skip


def _texts(message: Message) -> list[str]:
    if message["role"] == "assistant":
        return []
    content = message.get("content")
    texts = [content] if isinstance(content, str) else [part.get("text") for part in content or ()]
    return [text for text in texts if isinstance(text, str)]


def _fill_marks(message: Message, remaining: list[Picture]) -> Message:
    """The message with pictures in the places of its marks."""
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    filled: list[Mapping[str, Any]] = []
    for part in parts:
        if not isinstance(part.get("text"), str):
            filled.append(part)
            continue
        for number, text in enumerate(part["text"].split(MARK)):
            filled += [_part(remaining.pop(0))] if number else []
            filled += [{**part, "text": text}] if text else []
    return {**message, "content": filled}


def _part(picture: Picture) -> dict[str, Any]:
    return {"type": "image", "image": picture}


def with_stored_images(value: Any, folder: Path) -> Any:
    """A row with paths in place of its images, which are stored as `<folder>/images/<content hash>.png`: pictures, PIL
    images, and what `datasets` gives, `{"bytes", "path"}`. Everything else stays as it is."""
    if _is_image(value):
        picture = read_picture(value)
        PictureFolder(folder / _FOLDER).write([picture])
        return f"{_FOLDER}/{picture.content_hash}.png"
    if isinstance(value, Mapping):
        return {key: with_stored_images(entry, folder) for key, entry in value.items()}
    return [with_stored_images(entry, folder) for entry in value] if isinstance(value, list | tuple) else value


def _is_image(value: Any) -> bool:
    if isinstance(value, Picture) or (hasattr(value, "getbands") and hasattr(value, "save")):
        return True
    return isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes) and value.keys() <= {"bytes", "path"}
