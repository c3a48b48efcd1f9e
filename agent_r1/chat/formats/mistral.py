"""The Mistral formats: `[TOOL_CALLS]` and a list of calls, or `[TOOL_CALLS]name[ARGS]{...}` for each call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from agent_r1.chat.formats.base import (
    CUT,
    THINK_END,
    THINKING,
    CallParser,
    ParsedText,
    after_content,
    call_parts,
    kind_of,
    tool_formats,
)
from agent_r1.chat.formats.near_json import JsonRead, dump_json, read_json, read_valid_json, skip_spaces
from agent_r1.types import ToolCall, ToolSchema

_CALLS = "[TOOL_CALLS]"
_MARK = re.compile(r"<think>|\[THINK\]|\[TOOL_CALLS\]")
_NAME = re.compile(r"\s*([\w.-]{1,256})\s*(?:\[CALL_ID\][\w-]{0,64})?(?:\[ARGS\])?\s*")
# In words: the marks are control tokens, which must not occur in an error message to the model.
_EXAMPLE = 'the tool-calls mark, then [{"name": "NAME", "arguments": {"KEY": VALUE}}]'


@tool_formats.register("mistral")
class MistralFormat:
    """Mistral's format, the older list and the newer form with `[ARGS]`; `call_text` writes the list.

    >>> text = '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]now[ARGS]{}'
    >>> [call.name for call in MistralFormat().parse(text, truncated=False).tool_calls]
    ['add', 'now']
    """

    stop_tokens: tuple[str, ...] = ()
    call_openings: tuple[str, ...] = (_CALLS,)

    def parse(self, text: str, *, truncated: bool) -> ParsedText:
        """Find the calls outside thinking."""
        parser = CallParser(text, example=_EXAMPLE)
        for mark in parser.marks(_MARK, THINKING | {"[THINK]": "[/THINK]"}):
            following = text.find(_CALLS, mark.end())
            try:
                parser.position = _read_calls(parser, mark.end(), following, is_cut=truncated and following < 0)
            except ValueError as error:
                parser.malformed(CUT if truncated and following < 0 else str(error))
                if following < 0:
                    break
                parser.position = following
        return parser.parsed(truncated=truncated)

    def schemas_text(self, tools: Sequence[ToolSchema]) -> str:
        """The schemas and how to call."""
        return (
            f"You can call these tools:\n[AVAILABLE_TOOLS]{dump_json(list(tools))}[/AVAILABLE_TOOLS]\n"
            f'To call some, write {_CALLS}[{{"name": "NAME", "arguments": {{"KEY": VALUE}}}}]'
        )

    def call_text(self, calls: Sequence[ToolCall], content: str) -> str:
        """One list of all calls."""
        if not calls:
            return content
        body = dump_json([{"name": c.name, "arguments": dict(c.arguments)} for c in calls], [THINK_END])
        return after_content(content, _CALLS + body, separator="")

    def result_text(self, name: str, text: str) -> str:
        """The answer between its marks."""
        return f"[TOOL_RESULTS]{dump_json({'name': name, 'content': text})}[/TOOL_RESULTS]"


def _read_calls(parser: CallParser, start: int, following: int, *, is_cut: bool) -> int:
    """Add the calls after one mark; returns the index after them. ValueError says what is wrong."""
    text = parser.text
    limit = len(text) if following < 0 else following
    first = skip_spaces(text, start)
    if text[first : first + 1] in ("[", "{", "`"):
        listed, end, repairs = _read_value(text, first, limit)
        calls: list[Any] = listed if isinstance(listed, list) else [listed]
        if not calls:
            raise ValueError("the list of calls is empty")
        if not isinstance(listed, list):
            repairs = (*repairs, "call outside a list")
        parts = [call_parts(call, "arguments") for call in calls]
        for name, arguments, more in parts:
            parser.add(name, arguments, (*repairs, *more), is_cut=is_cut)
        return end
    name_found = _NAME.match(text, first, limit)
    if name_found is None:
        raise ValueError("expected a list of calls or the name of a tool")
    arguments, end, repairs = _read_value(text, name_found.end(), limit)
    if not isinstance(arguments, dict):
        raise ValueError(f"the arguments must be an object, found {kind_of(arguments)}")
    parser.add(name_found.group(1), arguments, repairs, is_cut=is_cut)
    return end


def _read_value(text: str, start: int, limit: int) -> JsonRead:
    """The JSON value before the next mark. A mark inside a string of valid JSON is text."""
    try:
        return read_json(text, start, limit)
    except ValueError:
        value = read_valid_json(text, start)
        if value is None:
            raise
        return value
