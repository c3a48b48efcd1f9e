"""Turn what a tool returned into a checked result that a model can read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from agent_r1.constraints import reward_problem
from agent_r1.errors import INTERRUPTIONS, ImageError, described
from agent_r1.images import Picture, read_picture
from agent_r1.tools.base import ToolResponse, ToolResult

MAX_IMAGES = 16
"""The most images of one answer."""


def as_result(returned: Any) -> ToolResult:
    """A tool result from what a function returned: the answer, `(answer, reward)` or `(answer, reward, info)`. An
    answer is a `ToolResponse`, an image, text, or a value that JSON can hold; so are the members of an Enum, pydantic
    models, dataclasses, sets and numpy's arrays, in the form that a parameter of their type takes. A named tuple is an
    answer.

    >>> as_result(({"price": 7}, 0.5))
    (ToolResponse(text='{"price": 7}', images=(), ends_episode=False), 0.5, {})
    """
    reward: Any = None
    info: Any = {}
    if isinstance(returned, tuple) and len(returned) in (2, 3) and not hasattr(returned, "_fields"):
        returned, reward, *rest = returned
        info = rest[0] if rest else {}
    if _is_image(returned):
        returned = ToolResponse(text="", images=(returned,))
    response = returned if isinstance(returned, ToolResponse) else ToolResponse(text=_as_text(returned))
    return checked_result((response, reward, info))


def _is_image(value: Any) -> bool:
    return isinstance(value, Picture) or (hasattr(value, "getbands") and hasattr(value, "save"))


def read_images(images: Any, tool_name: str) -> tuple[Picture, ...]:
    """The images of an answer as pictures; an `ImageError` says which one cannot be read, and why.

    A text is never read as a path: a model may have written it. `Path`s are.
    """
    if isinstance(images, str | bytes) or not isinstance(images, list | tuple):
        raise ImageError(f"the images of the answer of {tool_name} are a {type(images).__name__} instead of a tuple")
    if len(images) > MAX_IMAGES:
        raise ImageError(f"the answer of {tool_name} has {len(images)} images; at most {MAX_IMAGES} are read")
    return tuple(_read_image(image, f"image {i} of the answer of {tool_name}") for i, image in enumerate(images))


def _read_image(image: Any, where: str) -> Picture:
    folder = image.parent if isinstance(image, Path) else None
    return read_picture(image.name if isinstance(image, Path) else image, folder=folder, where=where)


def checked_result(returned: Any) -> ToolResult:
    """The value, checked to be a valid tool result; a TypeError or ValueError says what is wrong with it."""
    if not isinstance(returned, tuple) or len(returned) != 3:
        raise TypeError(f"the tool returned a {type(returned).__name__} instead of (ToolResponse, reward, info)")
    response, reward, info = returned
    if not isinstance(response, ToolResponse) or not isinstance(response.text, str):
        answer = response.text if isinstance(response, ToolResponse) else response
        raise TypeError(f"the tool's answer is a {type(answer).__name__}, which is no text")
    if not isinstance(info, Mapping):
        raise TypeError(f"the tool's notes are a {type(info).__name__} instead of a mapping")
    if reward is not None:
        try:
            reward = float(reward)
        except (TypeError, ValueError, OverflowError):
            raise TypeError(f"the tool's reward is a {type(reward).__name__}, which is no number") from None
        problem = reward_problem(reward)
        if problem is not None:
            raise ValueError(f"the tool's reward {problem}")
    return response, reward, info


def cut_middle(text: str, limit: int) -> str:
    """The text when it has at most `limit` characters, else its beginning and end with a note between them.

    >>> cut_middle("abcdefghij", 4)
    'ab\\n[... 6 of 10 characters left out ...]\\nij'
    """
    # A lone surrogate can be neither tokenised nor written to a file.
    text = text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text
    if len(text) <= limit:
        return text
    head, tail = (limit + 1) // 2, limit // 2
    note = f"\n[... {len(text) - limit:,} of {len(text):,} characters left out ...]\n"
    return text[:head] + note + text[len(text) - tail :]


def describe(error: BaseException) -> str:
    """The message of an exception, or its type when it has none. That of a `KeyError` is the key alone, which says
    nothing by itself.

    >>> describe(ValueError("there is no tea here")), describe(ValueError()), describe(KeyError("tea"))
    ('there is no tea here', 'ValueError', "KeyError: 'tea'")
    """
    if type(error).__str__ is KeyError.__str__:
        return described(error)
    try:
        text = str(error)
    except INTERRUPTIONS:
        raise
    except BaseException:
        text = ""
    return text or type(error).__name__


def _as_text(returned: Any) -> str:
    returned = returned.value if isinstance(returned, Enum) else returned
    return returned if isinstance(returned, str) else json.dumps(returned, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    """The JSON of a value that JSON does not have: that of its parts, else its text."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)  # the order of a set differs from process to process
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        return value.tolist()
    return _readable(value)


def _readable(value: Any) -> str:
    """The text of a date, decimal, path and the like; a TypeError for objects that print only a memory address."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError("the tool's answer holds raw bytes, which is no text")
    kind: Any = type(value)
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        raise TypeError(f"the tool's answer holds a {kind.__name__}, which is no text")
    return str(value)
