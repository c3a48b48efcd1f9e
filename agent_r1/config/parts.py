"""Parts named in the configuration: `{name: clip, clip_low: 0.2}` -> the registered function with its arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from agent_r1.errors import ConfigError, did_you_mean
from agent_r1.registry import Registry


def bind_part(registry: Registry[Any], key: str, part: Mapping[str, Any]) -> Callable[..., Any]:
    """The registered callable that `part` names, with the rest of `part` as keyword arguments.

    Arguments it does not take are refused, with the nearest one it does.
    """
    arguments = dict(part)
    name = arguments.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"'{key}' needs a name, found {dict(part)}; known: {', '.join(registry.names())}")
    target = registry.get(name)
    accepted = _keyword_arguments(target)
    unknown = [argument for argument in arguments if accepted is not None and argument not in accepted]
    if unknown:
        raise ConfigError(
            f"{registry.kind} '{name}' takes no argument '{unknown[0]}' (key '{key}.{unknown[0]}'). "
            f"{did_you_mean(unknown[0], accepted or ())} To drop it: '~{key}.{unknown[0]}'"
        )
    return functools.partial(target, **arguments)


def _keyword_arguments(target: Any) -> set[str] | None:
    """Names it takes as keywords; None when it takes any. What it takes as data stands first and is not counted."""
    parameters = list(inspect.signature(target).parameters.values())
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    if inspect.isclass(target):
        return {parameter.name for parameter in parameters}
    return {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
