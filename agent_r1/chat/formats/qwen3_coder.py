"""The Qwen3-Coder format: a tag for the function and one for each parameter.

    <tool_call>
    <function=price>
    <parameter=item>
    apple
    </parameter>
    </function>
    </tool_call>

The text between parameter tags, without the newline at either end, is the value. It is text, also when it is a number
or true or false (a tool whose parameter is a number reads "7" as 7). Only a JSON object, a JSON list, a quoted JSON
string and null are read as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from agent_r1.chat.control_tokens import without_cuts
from agent_r1.chat.formats.base import (
    CUT,
    THINK_END,
    CallParser,
    ParsedText,
    after_content,
    schema_lines,
    tool_formats,
)
from agent_r1.chat.formats.near_json import dump_json, skip_spaces
from agent_r1.types import ToolCall, ToolSchema

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION_END, _PARAMETER_END = "</function>", "</parameter>"
_MARK = re.compile("<think>|</?tool_call>|<function=")
_FUNCTION = re.compile(r"<function=([^<>\n]{1,256})>")
_PARAMETER = re.compile(r"<parameter=([^<>\n]{1,256})>")
_BEGIN = re.compile("<tool_call>|<function=")
_OWN_MARKS = (THINK_END, _PARAMETER_END, _OPEN, "<function=")
_EXAMPLE = "<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>"


@tool_formats.register("qwen3_coder")
class Qwen3CoderFormat:
    """Qwen3-Coder's format: parameters are tags, values are text.

    >>> text = "<tool_call><function=add><parameter=a>[1, 2]</parameter></function></tool_call>"
    >>> Qwen3CoderFormat().parse(text, truncated=False).tool_calls
    (ToolCall(name='add', arguments={'a': [1, 2]}, call_id='call00000'),)
    """

    stop_tokens: tuple[str, ...] = ()
    call_openings: tuple[str, ...] = (_OPEN, _CLOSE, "<function=")

    def parse(self, text: str, *, truncated: bool) -> ParsedText:
        """Find the calls outside thinking."""
        parser = CallParser(text, example=_EXAMPLE)
        for mark in parser.marks(_MARK):
            if mark.group() == _CLOSE:
                parser.error(f"Tool call is malformed: {_CLOSE} without {_OPEN}")
                continue
            wrapped = mark.group() == _OPEN
            try:
                parser.position = _read_call(text, mark.end() if wrapped else mark.start(), parser, wrapped=wrapped)
            except ValueError as error:
                end = text.find(_CLOSE, mark.end())
                parser.malformed(CUT if truncated and end < 0 else str(error))
                parser.position = len(text) if end < 0 else end + len(_CLOSE)
        return parser.parsed(truncated=truncated)

    def schemas_text(self, tools: Sequence[ToolSchema]) -> str:
        """The schemas and how to call."""
        return (
            f"You can call these tools:\n<tools>\n{schema_lines(tools)}\n</tools>\n"
            f"To call one, write its name and its parameters as tags, each value on lines of its own:\n{_EXAMPLE}\n"
            "You may write several calls. The answers come in <tool_response> tags."
        )

    def call_text(self, calls: Sequence[ToolCall], content: str) -> str:
        """A block of tags for each call."""
        return after_content(content, "\n".join(_write_call(call) for call in calls))

    def result_text(self, name: str, text: str) -> str:
        """The answer in its tag."""
        return f"<tool_response>\n{text}\n</tool_response>"


def read_value(text: str) -> Any:
    """A parameter's value: JSON when it is an object, a list, a quoted string or null, else the text as it stands.

    >>> [read_value(text) for text in ('{"a": 1}', "null", '"7"', "7", "{x}")]
    [{'a': 1}, None, '7', '7', '{x}']
    """
    stripped = text.strip()
    if stripped != "null" and stripped[:1] not in ("{", "[", '"'):
        return text
    try:
        return json.loads(stripped)
    except (ValueError, RecursionError):
        return text


def write_value(value: Any) -> str:
    """The text that `read_value` reads as `value`; numbers, true and false come back as their text.

    >>> write_value("apple"), write_value("null"), write_value(7)
    ('apple', '"null"', '7')
    """
    if isinstance(value, str) and read_value(value) == value:
        text = without_cuts(value)
        if not any(mark in text for mark in _OWN_MARKS):
            return value
    return dump_json(value, _OWN_MARKS)


def _write_call(call: ToolCall) -> str:
    parameters = [f"<parameter={key}>\n{write_value(value)}\n{_PARAMETER_END}" for key, value in call.arguments.items()]
    return "\n".join([_OPEN, f"<function={call.name}>", *parameters, _FUNCTION_END, _CLOSE])


def _read_call(text: str, start: int, parser: CallParser, *, wrapped: bool) -> int:
    """Add the call that begins at `start`; returns the index after it. ValueError says what is wrong with it."""
    function = _FUNCTION.match(text, skip_spaces(text, start))
    if function is None:
        raise ValueError("<function=NAME> must come first")
    following = _BEGIN.search(text, function.end())
    limit = following.start() if following else len(text)
    arguments: dict[str, Any] = {}
    position = skip_spaces(text, function.end())
    while parameter := _PARAMETER.match(text, position):
        name = parameter.group(1).strip()
        end = text.find(_PARAMETER_END, parameter.end(), limit)
        if end < 0:
            raise ValueError(f"{_PARAMETER_END} is missing after <parameter={name}>")
        if name in arguments:
            raise ValueError(f"<parameter={name}> is given twice")
        arguments[name] = read_value(_without_outer_newlines(text[parameter.end() : end]))
        position = skip_spaces(text, end + len(_PARAMETER_END))
    if not text.startswith(_FUNCTION_END, position):
        place = repr(text[position]) if position < len(text) else "the end"
        raise ValueError(f"expected <parameter=KEY> or {_FUNCTION_END}, found {place}")
    after = skip_spaces(text, position + len(_FUNCTION_END))
    is_closed = text.startswith(_CLOSE, after)
    missing = [tag for tag, is_present in ((_OPEN, wrapped), (_CLOSE, is_closed)) if not is_present]
    parser.add(function.group(1).strip(), arguments, [f"{tag} was missing" for tag in missing])
    return after + len(_CLOSE) if is_closed else position + len(_FUNCTION_END)


def _without_outer_newlines(text: str) -> str:
    return text.removeprefix("\n").removesuffix("\n")
