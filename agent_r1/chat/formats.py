"""Tool-call formats: how a model writes calls in its text, and how its mistakes are told to it.

A format parses the text of one action. It never raises on what a model wrote: a malformed call becomes `parse_error`,
a sentence the model can act upon.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Protocol

from agent_r1.registry import Registry
from agent_r1.types import ToolCall


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedText:
    """What a format found in an action's text."""

    content: str
    """The text outside calls."""
    tool_calls: tuple[ToolCall, ...]
    """Well-formed calls, in order; empty when `parse_error` is set."""
    parse_error: str | None
    """What was wrong, in words the model can use."""


class ToolFormat(Protocol):
    """Parses the text of an action."""

    def parse(self, text: str, *, truncated: bool) -> ParsedText:
        """Find the calls in `text`; `truncated` says the text was cut by the token limit."""
        ...


tool_formats: Registry[type[ToolFormat]] = Registry("tool format")

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


@tool_formats.register("hermes")
class HermesFormat:
    """The hermes / Qwen format: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them.

    >>> text = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    >>> HermesFormat().parse(text, truncated=False).tool_calls
    (ToolCall(name='add', arguments={'a': 1}, call_id='call_0'),)
    """

    def parse(self, text: str, *, truncated: bool) -> ParsedText:
        """Find the calls; one malformed call makes the whole action malformed, so that none runs half-understood."""
        calls: list[ToolCall] = []
        errors: list[str] = []
        for index, match in enumerate(_CALL.finditer(text)):
            try:
                calls.append(_read_call(match.group(1), f"call_{index}"))
            except ValueError as error:
                errors.append(f"Tool call {index + 1} is malformed: {error}")
        content = _CALL.sub("", text)
        if _OPEN in content:
            reason = "it was cut by the length limit" if truncated else f"{_CLOSE} is missing"
            errors.append(f"Tool call {len(calls) + len(errors) + 1} is malformed: {reason}")
        elif _CLOSE in content:
            errors.append(f"Tool call is malformed: {_CLOSE} without {_OPEN}")
        elif truncated and not calls:
            errors.append("The answer was cut by the length limit")
        if errors:
            return ParsedText(content=text, tool_calls=(), parse_error=". ".join(errors) + ".")
        return ParsedText(content=content.strip(), tool_calls=tuple(calls), parse_error=None)


def _read_call(body: str, call_id: str) -> ToolCall:
    """One call from its JSON; ValueError says what is wrong with it."""
    try:
        call: Any = json.loads(body)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error.msg} at character {error.pos})") from None
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    if not isinstance(call, dict):
        raise ValueError('expected an object with "name" and "arguments"')
    name, arguments = call.get("name"), call.get("arguments", {})
    if not isinstance(name, str) or not name:
        raise ValueError('"name" must be the name of a tool')
    if not isinstance(arguments, dict):
        raise ValueError('"arguments" must be an object')
    return ToolCall(name=name, arguments=arguments, call_id=call_id)
