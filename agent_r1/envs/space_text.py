"""Gymnasium spaces as text: what the model reads of an observation, and the action that its text stands for.

    Discrete(16)         5                        "5"
    Box(4,)              [0.0273, -0.0061, ...]   "[0.0273, -0.0061, 0.0361, 0.0193]"
    Dict(x=..., y=...)   {"x": ..., "y": ...}     '{"x": 1, "y": [0, 1]}'

Numbers are written with four digits. An action is read from the same form, as strict JSON.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from agent_r1.codec import read_json
from agent_r1.images import Picture

MAX_NUMBERS = 256
"""The longest observation that is written out; an image is shown as one, or needs a function of its own."""

_HIGHLIGHT = re.compile(r"\x1b\[[\d;]*4\dm(.)\x1b\[0m")
_COLOR = re.compile(r"\x1b\[[\d;]*m")


class NoTextFormError(ValueError):
    """A space whose values have no text form."""


def observation_text(value: Any) -> str:
    """An observation as text: text as it is, anything else as JSON; `NoTextFormError` for what is no short data.

    >>> observation_text((14, 10, 0)), observation_text({"x": 0.123456})
    ('[14, 10, 0]', '{"x": 0.1235}')
    """
    return value if isinstance(value, str) else json.dumps(_plain(value))


def is_image(value: Any) -> bool:
    """Whether a value is an image: a picture, a PIL image, or an array of uint8 with height x width x 3 or 4."""
    if isinstance(value, Picture) or (hasattr(value, "getbands") and hasattr(value, "save")):
        return True
    shape: tuple[int, ...] = getattr(value, "shape", ())
    return str(getattr(value, "dtype", "")) == "uint8" and len(shape) == 3 and shape[2] in (3, 4) and 0 not in shape


def split_images(observation: Any) -> tuple[Any, list[Any]]:
    """What is left of an observation without its images (None: nothing), and these; it may be one, or have some as
    entries of a dict."""
    if is_image(observation):
        return None, [observation]
    if isinstance(observation, dict):
        rest = {name: entry for name, entry in observation.items() if not is_image(entry)}
        return rest or None, [entry for entry in observation.values() if is_image(entry)]
    return observation, []


def picture_text(rendered: str) -> str:
    """What a `render_mode="ansi"` returns, without colors; the highlighted character is put in brackets.

    >>> picture_text("  (Down)\\n\\x1b[41mS\\x1b[0mFFF\\n")
    '  (Down)\\n[S]FFF'
    """
    return _COLOR.sub("", _HIGHLIGHT.sub(r"[\1]", rendered)).strip("\n")


def parse_action(space: Any, text: str) -> Any:
    """The action that a text stands for; a `ValueError` is the message for the model."""
    try:
        action = _value(space, _read(space, text))
        if space.contains(action):
            return action
    except (ValueError, TypeError, OverflowError):
        pass
    raise ValueError(f"'{text:.200}' is no action here; an action is {describe_space(space)}.")


def describe_space(space: Any) -> str:
    """What an action of a space is, in words; `NoTextFormError` for a space without a text form."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return f"a whole number from {int(space.start)} to {int(space.start + space.n - 1)}"
    if isinstance(space, spaces.Text):
        letters = "".join(space.characters)
        return f"text of {space.min_length} to {space.max_length} characters out of {letters}"
    if isinstance(space, spaces.MultiBinary):
        return f"a JSON list of 0 and 1 with the shape {list(space.shape)}"
    if isinstance(space, spaces.MultiDiscrete):
        lowest = space.start.tolist()
        return f"a JSON list of whole numbers from {lowest} to {(space.start + space.nvec - 1).tolist()}"
    if isinstance(space, spaces.Box):
        shape = "a number" if math.prod(space.shape) == 1 else f"a JSON list of numbers with the shape {_shape(space)}"
        return f"{shape}{_bounds(space)}"
    if isinstance(space, spaces.Tuple):
        return "a JSON list of " + ", then ".join(describe_space(part) for part in space.spaces)
    if isinstance(space, spaces.Dict):
        parts = "; ".join(f"{json.dumps(str(name))}: {describe_space(part)}" for name, part in space.spaces.items())
        return f"a JSON object with {parts}"
    raise NoTextFormError(f"{type(space).__name__} has no text form")


def _shape(space: Any) -> str:
    return str(space.shape[0]) if len(space.shape) == 1 else str(list(space.shape))


def _bounds(space: Any) -> str:
    low, high = float(space.low.min()), float(space.high.max())
    if not math.isfinite(low) or not math.isfinite(high):
        return ""
    return f" from {low:.4g} to {high:.4g}"


def _plain(value: Any, room: int = MAX_NUMBERS) -> Any:
    """Numbers, texts, lists and objects, with floats of four digits."""
    if hasattr(value, "tolist"):  # numpy's arrays and numbers
        if getattr(value, "size", 1) > room:
            raise NoTextFormError(f"an array of {value.size:,} numbers is too long to be read as text")
        value = value.tolist()
    if isinstance(value, bool | str) or value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return [_plain(entry, room) for entry in value]
    if isinstance(value, dict):
        return {str(name): _plain(entry, room) for name, entry in value.items()}
    raise NoTextFormError(f"a {type(value).__name__} has no text form")


def _read(space: Any, text: str) -> Any:
    """The JSON value of a text; a list may lack its brackets, and text of a `Text` space needs no quotes."""
    if type(space).__name__ == "Text":
        return text
    try:
        return read_json(text)
    except ValueError:
        return read_json(f"[{text}]")


def _value(space: Any, found: Any) -> Any:
    """A JSON value as a value of the space; numbers get its type and shape."""
    import numpy as np
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        if isinstance(found, list) and len(found) == 1:
            found = found[0]
        if isinstance(found, bool) or not isinstance(found, int):
            raise ValueError("not a whole number")
        return space.dtype.type(found)
    if isinstance(space, spaces.Tuple):
        return tuple(_value(part, entry) for part, entry in zip(space.spaces, _list(found), strict=True))
    if isinstance(space, spaces.Dict):
        if not isinstance(found, dict) or set(found) != {str(name) for name in space.spaces}:
            raise ValueError("not an object with the names of the space")
        return {name: _value(part, found[str(name)]) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        array = np.asarray(found)
        if array.dtype.kind not in "if" or (array.dtype.kind == "f" and np.dtype(space.dtype).kind != "f"):
            raise ValueError("not numbers of the space")
        if array.shape != space.shape and not (array.size == 1 and math.prod(space.shape) == 1):
            raise ValueError("another shape")
        return array.astype(space.dtype).reshape(space.shape)
    return found


def _list(found: Any) -> list[Any]:
    if not isinstance(found, list):
        raise ValueError("not a list")
    return found
