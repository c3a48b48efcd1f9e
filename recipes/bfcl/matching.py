"""Whether calls are those that a row of BFCL accepts.

A ground truth is a list of calls, each with the accepted values of every argument:

    [{"weather": {"city": ["Paris", "Paris, France"], "unit": ["celsius", ""]}}]

"" among the values says that the argument may be left out. Calls may come in any order. Numbers and booleans must have
the schema's type, texts are compared without case, spaces and some punctuation, lists entry by entry. How deep the
comparison goes is decided by the ground truth, never by what the model wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

OMITTED = ""
"""The accepted value of an argument that may be left out."""

_IGNORED = re.compile(r"[ \,\.\/\-\_\*\^]")


def plain_name(name: str) -> str:
    """A function's name as models see it: most APIs take no dots."""
    return name.replace(".", "_")


def calls_match(calls: Sequence[tuple[str, Any]], truth: Sequence[Mapping[str, Any]], functions: Sequence[Any]) -> bool:
    """Whether each call (name, arguments) is one of the accepted ones, each accepted one exactly once.

    >>> truth = [{"add": {"a": [1], "b": [2, ""]}}]
    >>> [calls_match([("add", given)], truth, []) for given in ({"a": 1}, {"a": 1, "b": 2}, {"a": 2}, {"a": 1, "c": 3})]
    [True, True, False, False]
    """
    if len(calls) != len(truth):
        return False
    schemas = _schemas(functions)
    fits = [[_call_fits(call, accepted, schemas) for accepted in truth] for call in calls]
    return _all_assigned(fits)


def _call_fits(call: tuple[str, Any], accepted: Mapping[str, Any], schemas: Mapping[str, Any]) -> bool:
    [(name, wanted)] = accepted.items()
    given_name, arguments = call
    if plain_name(given_name) != plain_name(name) or not isinstance(arguments, Mapping):
        return False
    schema = schemas.get(plain_name(name), {})
    return _required(schema, wanted) <= set(arguments) and _object_fits(arguments, wanted, schema)


def _schemas(functions: Sequence[Any]) -> dict[str, Any]:
    return {plain_name(function["name"]): function.get("parameters") or {} for function in functions}


def _required(schema: Mapping[str, Any], wanted: Mapping[str, Any]) -> set[str]:
    """The arguments that a call must have. One row requires an argument that its own ground truth does not have."""
    return set(schema.get("required") or ()) & set(wanted)


def _object_fits(given: Mapping[str, Any], wanted: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    """Whether every given entry is accepted, and every missing one may be left out."""
    properties = schema.get("properties") or {}
    if not set(given) <= set(wanted):
        return False
    return all(
        any(_fits(given[key], value, properties.get(key) or {}) for value in _values(accepted))
        if key in given
        else OMITTED in _values(accepted)
        for key, accepted in wanted.items()
    )


def _values(accepted: Any) -> list[Any]:
    """The accepted values; where none is listed, the empty list is meant."""
    return (accepted or [[]]) if isinstance(accepted, list) else [accepted]


def _fits(given: Any, accepted: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value is the accepted one."""
    match accepted:
        case str():
            return isinstance(given, str) and _plain_text(given) == _plain_text(accepted)
        case bool() | None:
            return given is accepted
        case int() | float():
            return _is_number(given, schema) and given == accepted
        case list():
            items = schema.get("items") or {}
            return (
                isinstance(given, list)
                and len(given) == len(accepted)
                and all(_fits(entry, wanted, items) for entry, wanted in zip(given, accepted, strict=True))
            )
        case dict():
            return isinstance(given, Mapping) and _object_fits(given, accepted, schema)
    return False


def _is_number(given: Any, schema: Mapping[str, Any]) -> bool:
    """Whole numbers stand for floats, floats do not stand for whole numbers."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        return False
    return isinstance(given, int) or schema.get("type") != "integer"


def _plain_text(text: str) -> str:
    return _IGNORED.sub("", text).lower().replace("'", '"')


def _all_assigned(fits: Sequence[Sequence[bool]]) -> bool:
    """Whether the calls can be assigned to different accepted ones (augmenting paths)."""
    call_of: dict[int, int] = {}

    def assign(call: int, tried: set[int]) -> bool:
        for accepted, fit in enumerate(fits[call]):
            if fit and accepted not in tried:
                tried.add(accepted)
                if accepted not in call_of or assign(call_of[accepted], tried):
                    call_of[accepted] = call
                    return True
        return False

    return all(assign(call, set()) for call in range(len(fits)))


def gold_calls(truth: Sequence[Mapping[str, Any]], functions: Sequence[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Calls that the ground truth accepts: of each argument the first value; those that may be left out are."""
    schemas = _schemas(functions)
    for accepted in truth:
        for name, wanted in accepted.items():
            yield plain_name(name), _gold_object(wanted, _required(schemas.get(plain_name(name), {}), wanted))


def _gold_object(wanted: Mapping[str, Any], required: set[str]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for key, accepted in wanted.items():
        values = _values(accepted)
        if key in required or OMITTED not in values:
            chosen[key] = _gold_value(next((value for value in values if value != OMITTED), OMITTED))
    return chosen


def _gold_value(accepted: Any) -> Any:
    if isinstance(accepted, Mapping):
        return _gold_object(accepted, set())
    return [_gold_value(entry) for entry in accepted] if isinstance(accepted, list) else accepted
