"""Constraints on values, stated beside their types, and the functions that check them.

    steps: Count = 100                                     # a field of the configuration
    def step_gae(table, *, gamma: Fraction = 1.0): ...     # an argument that a configuration may set

Constraints are pydantic's, in `Annotated`. The configuration's fields and the arguments of everything that a
configuration names (estimators, losses, environments, wrappers, context policies, tools) are checked by the same
functions. A float must be finite.
"""

from __future__ import annotations

import inspect
import math
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation

MAX_WHOLE_NUMBER = 2**31 - 1
"""The largest count; more steps, tokens or episodes are a typo."""
MAX_NESTING = 100
"""Maximum depth of nested lists and objects, well below the recursion limits of readers, writers and templates."""
MAX_REWARD = 1e9
"""The largest absolute reward. Sums and squares of such numbers stay finite in float32."""

_MAX_PATH_BYTES = 4000
_MAX_NAME_BYTES = 255
_MAX_BITS = 1023

Count = Annotated[int, Field(ge=1, le=MAX_WHOLE_NUMBER)]
"""A whole number from 1."""
CountOrZero = Annotated[int, Field(ge=0, le=MAX_WHOLE_NUMBER)]
"""A whole number from 0."""
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""A seed for random numbers."""
Positive = Annotated[float, Field(gt=0)]
"""A number above 0."""
NotNegative = Annotated[float, Field(ge=0)]
"""A number from 0."""
Fraction = Annotated[float, Field(ge=0, le=1)]
"""A number from 0 to 1."""
Seconds = Annotated[float, Field(ge=1e-3, le=1e9)]
"""A time limit, at least a millisecond."""


def one_of(*names: str) -> AfterValidator:
    """One of these texts: `place: Annotated[str, one_of("loss", "reward")]`."""

    def check(value: str) -> str:
        if value not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return value

    return AfterValidator(check)


def like(pattern: str, description: str) -> AfterValidator:
    """Text that matches a pattern: `Annotated[str, like(r"cpu|cuda(:\\d+)?", "cpu or cuda:N")]`."""

    def check(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            raise ValueError(f"must be {description}")
        return value

    return AfterValidator(check)


def _usable_path(value: str) -> str:
    if len(_as_bytes(value)) > _MAX_PATH_BYTES or any(
        len(_as_bytes(part)) > _MAX_NAME_BYTES for part in value.split("/")
    ):
        raise ValueError(
            f"is not a path: longer than {_MAX_PATH_BYTES} bytes, or a name in it longer than {_MAX_NAME_BYTES}"
        )
    return value


def _as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


PathText = Annotated[str, AfterValidator(_usable_path)]
"""A path that file systems accept; it need not exist."""

_WORDS = {
    "Input should": "must",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "more than",
    "a valid": "a",
    "a integer": "a whole number",
    "a string": "text",
    "a boolean": "true or false",
}
"""Pydantic's words and their replacements."""

_Checks = Mapping[str, TypeAdapter[Any]]


def field_problems(record: Any, prefix: str = "") -> Iterator[str]:
    """What is wrong with the fields of a dataclass, by the constraints in its annotations; nested ones included.

    "trainer.steps=0 must be at least 1"
    """
    schema: Any = type(record)
    checks = _checks_of_fields(schema)
    for name, check in checks.items():
        value = getattr(record, name)
        key = f"{prefix}{name}"
        if hasattr(value, "__dataclass_fields__"):
            yield from field_problems(value, f"{key}.")
        elif (problem := _problem(check, value)) is not None:
            yield f"{key}={_value_text(value)} {problem}"


def argument_problems(target: Callable[..., Any], arguments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong with keyword arguments, by the annotations of `target`: pairs of argument and problem.

    `("gamma", "2 must be at most 1")`
    """
    checks = _checks_of_arguments(target)
    for name, value in arguments.items():
        check = checks.get(name)
        if check is not None and (problem := _problem(check, value)) is not None:
            yield name, f"{_value_text(value)} {problem}"


def unusable_parts(value: Any, where: str, *, from_data: bool = True) -> Iterator[str]:
    """Values inside lists and mappings that are never usable: numbers that are not finite, text that is not Unicode,
    whole numbers too large for a float, and more than `MAX_NESTING` levels; in data also types that JSON does not have,
    in a configuration (`from_data=False`) also NUL characters, which no path or name may hold.

    >>> list(unusable_parts({"a": [1.0, float("nan")]}, "env_kwargs"))
    ['env_kwargs.a[1] is nan; numbers must be finite']
    """
    if _are_usable(value, from_data):
        return
    pending: list[tuple[Any, str, int]] = [(value, where, 0)]
    while pending:
        part, path, depth = pending.pop()
        if depth > MAX_NESTING:
            yield f"{where} is nested more than {MAX_NESTING} levels deep"
            return
        if isinstance(part, Mapping):
            for key, entry in part.items():
                if not isinstance(key, str):
                    yield f"{path} has the key {_value_text(key)}; keys must be text"
                elif (problem := _text_problem(key, from_data)) is not None:
                    yield f"{path} has a key that {problem}"
                else:
                    pending.append((entry, f"{path}.{key}" if path else key, depth + 1))
        elif isinstance(part, list | tuple):
            pending.extend((entry, f"{path}[{index}]", depth + 1) for index, entry in enumerate(part))
        elif isinstance(part, str):
            if (problem := _text_problem(part, from_data)) is not None:
                yield f"{path} {problem}"
        elif isinstance(part, int):
            if part.bit_length() > _MAX_BITS:
                yield f"{path} is {_value_text(part)}, more than any float can hold; write it as text"
        elif isinstance(part, float):
            if not math.isfinite(part):
                yield f"{path} is {part}; numbers must be finite"
        elif from_data and part is not None:
            yield f"{path} is a {type(part).__name__}, which JSON does not have; make it text or a number"


def _are_usable(value: Any, from_data: bool) -> bool:
    """Whether everything inside is usable, told quickly; False also where only a longer look can tell."""
    level = [value]
    for _ in range(MAX_NESTING + 1):
        inner: list[Any] = []
        for part in level:
            kind = type(part)
            if kind is str:
                if not part.isascii() or (not from_data and "\0" in part):
                    return False
            elif kind is dict:
                if not all(type(key) is str and key.isascii() and (from_data or "\0" not in key) for key in part):
                    return False
                inner += part.values()
            elif kind is list or kind is tuple:
                inner += part
            elif kind is int:
                if part.bit_length() > _MAX_BITS:
                    return False
            elif kind is float:
                if not math.isfinite(part):
                    return False
            elif part is not None and kind is not bool:
                return False
        if not inner:
            return True
        level = inner
    return False


def _text_problem(text: str, may_hold_nul: bool) -> str | None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "holds half of a surrogate pair, which is not Unicode text"
    return "holds a NUL character" if not may_hold_nul and "\0" in text else None


def reward_problem(value: float) -> str | None:
    """What is wrong with the size of a reward; None: nothing.

    >>> reward_problem(1e308)
    'is 1e+308; rewards must be finite and at most 1e+09 in size'
    """
    if math.isfinite(value) and abs(value) <= MAX_REWARD:
        return None
    return f"is {value}; rewards must be finite and at most {MAX_REWARD:g} in size"


def as_number(value: Any) -> float | None:
    """A number of Python, numpy or torch as a float; None for anything else, text among it.

    >>> as_number(True), as_number("1"), as_number(10**400)
    (1.0, None, None)
    """
    try:
        plain = value.item() if hasattr(value, "item") else value  # float() of a tensor with a gradient warns
        return None if isinstance(plain, str | bytes) else float(plain)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None


def reward_number(value: Any) -> float:
    """A reward as a float, also of numpy's and torch's numbers. A `ValueError` says what is wrong with it, in words
    that continue "the reward".

    >>> reward_number(True)
    1.0
    >>> reward_number("1")
    Traceback (most recent call last):
    ValueError: is '1' (str); rewards must be numbers
    """
    number = as_number(value)
    if number is None:
        raise ValueError(f"is {value!r:.60} ({type(value).__name__}); rewards must be numbers")
    problem = reward_problem(number)
    if problem is not None:
        raise ValueError(problem)
    return number


@lru_cache(maxsize=256)
def _checks_of_fields(schema: type) -> _Checks:
    hints = typing.get_type_hints(schema, include_extras=True)
    return {name: check for name, hint in hints.items() if (check := _check(hint)) is not None}


@lru_cache(maxsize=512)
def _checks_of_arguments(target: Callable[..., Any]) -> _Checks:
    function: Any = target.__init__ if inspect.isclass(target) else target
    hints = {name: _hint(function, name) for name in getattr(function, "__annotations__", ()) if name != "return"}
    return {name: check for name, hint in hints.items() if hint is not None and (check := _check(hint)) is not None}


def _hint(function: Any, name: str) -> Any:
    """The annotation of one argument; None when it has names that exist only for type checkers."""
    alone = SimpleNamespace(__annotations__={name: function.__annotations__[name]})
    try:
        return typing.get_type_hints(alone, function.__globals__, include_extras=True)[name]
    except (NameError, TypeError, AttributeError):
        return None


def _check(hint: Any) -> TypeAdapter[Any] | None:
    """The check of a type; None for one that pydantic cannot check."""
    config = ConfigDict(allow_inf_nan=False, arbitrary_types_allowed=True)
    for settings in (config, None):  # a hint that is itself a dataclass takes no settings
        try:
            return TypeAdapter(hint, config=settings)
        except (PydanticUserError, PydanticUndefinedAnnotation):
            continue
    return None


def _problem(check: TypeAdapter[Any], value: Any) -> str | None:
    try:
        check.validate_python(value, strict=True)
    except ValidationError as strict_error:
        error = strict_error
    else:
        return None
    if isinstance(value, list | Mapping):
        # YAML has lists where a signature may say tuple or Sequence.
        try:
            check.validate_python(value)
        except ValidationError as lax_error:
            error = lax_error
        else:
            return None
    messages = dict.fromkeys(_message_of(entry) for entry in error.errors(include_url=False))
    return " or ".join(list(messages)[:3])


def _message_of(entry: Any) -> str:
    message = str(entry["msg"]).removeprefix("Value error, ")
    for words, replacement in _WORDS.items():
        message = message.replace(words, replacement, 1)
    # Inside a list or mapping, say where.
    inside = ".".join(str(part) for part in entry["loc"] if isinstance(part, int))
    return f"[{inside}] {message}" if inside else message


def _value_text(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return f"an integer of {value.bit_length()} bits"  # Python refuses to write the longest ones out
    text = repr(value) if not isinstance(value, str) else value
    return text if len(text) <= 80 else f"{text[:77]}..."
