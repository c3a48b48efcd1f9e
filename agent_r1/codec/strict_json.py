"""Strict JSON: reading gives a value or a `ValueError`, writing never produces NaN."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text, parsed strictly; any problem is a `ValueError` that names it.

    Python's own parser accepts NaN and duplicate keys, and raises other errors for deep nesting and long numbers.
    """
    try:
        whole = text.decode() if isinstance(text, bytes) else text
        return json.loads(whole, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text ({error.reason} at byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at character {error.pos}): {whole[:60]!r}") from None
    except RecursionError:
        raise ValueError(f"nested too deeply: {whole[:60]!r}") from None
    except ValueError as error:
        raise ValueError(_explain_digits(str(error))) from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON; numbers must be finite")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {repeated!r:.60} stands twice in one object")
    return entries


def _explain_digits(message: str) -> str:
    return "an integer of thousands of digits; write it as text" if "integer string conversion" in message else message


def is_deeper_than(value: Any, depth: int) -> bool:
    """Whether objects and lists are nested more than `depth` levels. Not recursive: the value may be of any depth.

    >>> is_deeper_than({"a": [1]}, 2), is_deeper_than({"a": [[]]}, 2)
    (False, True)
    """
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(depth):
        level = [
            entry
            for container in level
            for entry in (container.values() if isinstance(container, dict) else container)
            if isinstance(entry, dict | list)
        ]
    return bool(level)


def write_json(value: Any, *, indent: int | None = None, default: Callable[[Any], Any] | None = None) -> str:
    """JSON text with null for numbers that are not finite, which JSON cannot hold. `default` converts what JSON does
    not know, as in `json.dumps`.

    >>> write_json({"eval/all/greedy": float("nan")})
    '{"eval/all/greedy": null}'
    """

    def convert(entry: Any) -> Any:
        if isinstance(entry, Mapping):
            return dict(entry)
        if default is None:
            raise TypeError(f"a {type(entry).__name__} cannot be written as JSON")
        return default(entry)

    try:  # the common case, which the C encoder does alone
        return json.dumps(value, indent=indent, allow_nan=False, default=convert)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, allow_nan=False, default=convert)


def write_json_line(entry: Mapping[str, Any], *, default: Callable[[Any], Any]) -> str:
    """An entry as `write_json` writes it, and a line end. With orjson, where it is installed and can write the entry,
    it is faster; the text then has no spaces, and characters beyond ASCII as they are.

    >>> json.loads(write_json_line({"a": (1, float("nan"))}, default=str))
    {'a': [1, None]}
    """
    orjson = _orjson()
    if orjson is not None:
        with suppress(TypeError):  # such as keys that are no strings
            options = orjson.OPT_APPEND_NEWLINE | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
            convert = partial(_as_dict, default=default)
            return str(orjson.dumps(entry, default=convert, option=options), "utf-8")
    return write_json(entry, default=default) + "\n"


@cache
def _orjson() -> Any:
    return import_module("orjson") if find_spec("orjson") else None


def _as_dict(value: Any, default: Callable[[Any], Any]) -> Any:
    return dict(value) if isinstance(value, Mapping) else default(value)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
