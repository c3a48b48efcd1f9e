"""Chat messages and tool schemas in OpenAI form, and the media that messages may hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

TokenIds = tuple[int, ...]

Message = Mapping[str, Any]
"""A chat message in OpenAI form: `role`, `content`, and for tool use `tool_calls`, `tool_call_id`, `name`."""

ToolSchema = Mapping[str, Any]
"""A tool in OpenAI form: `{"type": "function", "function": {"name", "description", "parameters"}}`."""

MAX_ARGUMENT_DEPTH = 100
"""Nesting of a call's arguments. No tool needs as much, and whatever renders, sends or records a call walks through
it."""

TEXT_ARGUMENT = "input"
"""The name of the argument that holds plain text, in formats whose calls may have text instead of named arguments."""

_MEDIA = {
    f"{before}{kind}{after}": kind
    for kind in ("image", "video", "audio")
    for before in ("", "input_")
    for after in ("", "s", "_url")
}
"""Types and keys of content parts and messages that are not text, with the kind of media each one holds."""


def content_text(content: Any) -> str:
    """The content of a message for people to read: its text, and images as `[image]`, with their size if it is known.

    >>> content_text([{"type": "text", "text": "What is this?"}, {"type": "image"}])
    'What is this?\\n[image]'
    """
    if not isinstance(content, list | tuple):
        return "" if content is None else str(content)
    return "\n".join(map(_part_text, content))


def _part_text(part: Any) -> str:
    if not isinstance(part, Mapping) or isinstance(part.get("text"), str):
        return str(part["text"] if isinstance(part, Mapping) else part)
    kinds = media_in([{"content": [part]}])
    image: Any = part.get("image")
    size = f", {image.width} x {image.height}" if hasattr(image, "width") and hasattr(image, "height") else ""
    return f"[{kinds[0] if kinds else part.get('type', 'part')}{size}]"


def media_in(messages: Iterable[Any]) -> list[str]:
    """The kinds of media in messages: image, video, audio, in this order.

    >>> media_in([{"role": "user", "content": [{"type": "image_url", "image_url": {}}, {"type": "text", "text": "?"}]}])
    ['image']
    """
    kinds: set[str] = set()
    for message in messages:
        if not isinstance(message, Mapping):
            continue
        content = message.get("content")
        parts = [part for part in content if isinstance(part, Mapping)] if isinstance(content, list | tuple) else []
        names = [str(part.get("type")) for part in parts]
        names += [str(key) for holder in (message, *parts) for key, value in holder.items() if value is not None]
        kinds.update(_MEDIA[name] for name in names if name in _MEDIA)
    return [kind for kind in ("image", "video", "audio") if kind in kinds]
