"""The hermes format, also used by Qwen2.5 and Qwen3: JSON between `<tool_call>` tags."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agent_r1.chat.formats.base import (
    CUT,
    THINK_END,
    CallParser,
    ParsedText,
    after_content,
    call_parts,
    schema_lines,
    tool_formats,
)
from agent_r1.chat.formats.near_json import JsonRead, dump_json, read_valid_json, read_whole_json, skip_spaces
from agent_r1.types import ToolCall, ToolSchema

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_MARK = re.compile("<think>|</?tool_call>")
_EXAMPLE = '<tool_call>{"name": "NAME", "arguments": {"KEY": VALUE}}</tool_call>'


@tool_formats.register("hermes")
class HermesFormat:
    """The hermes / Qwen format: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them.

    >>> text = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    >>> HermesFormat().parse(text, truncated=False).tool_calls
    (ToolCall(name='add', arguments={'a': 1}, call_id='call00000'),)
    """

    stop_tokens: tuple[str, ...] = ()
    call_openings: tuple[str, ...] = (_OPEN, _CLOSE)

    def parse(self, text: str, *, truncated: bool) -> ParsedText:
        """Find the calls outside thinking."""
        parser = CallParser(text, example=_EXAMPLE)
        for mark in parser.marks(_MARK):
            if mark.group() == _CLOSE:
                parser.error(f"Tool call is malformed: {_CLOSE} without {_OPEN}")
                continue
            close = text.find(_CLOSE, mark.end())
            if close < 0:
                parser.malformed(CUT if truncated else f"{_CLOSE} is missing")
                break
            try:
                call, end, repairs = _read_body(text, mark.end(), close)
                name, arguments, more = call_parts(call, "arguments")
                parser.add(name, arguments, (*repairs, *more))
                parser.position = end + len(_CLOSE)
            except ValueError as error:
                parser.malformed(str(error))
                parser.position = close + len(_CLOSE)
        return parser.parsed(truncated=truncated)

    def schemas_text(self, tools: Sequence[ToolSchema]) -> str:
        """The schemas and how to call."""
        return (
            f"You can call these tools:\n<tools>\n{schema_lines(tools)}\n</tools>\n"
            f"To call one, write its name and arguments as JSON between tags:\n{_EXAMPLE}\n"
            "You may write several calls. The answers come in <tool_response> tags."
        )

    def call_text(self, calls: Sequence[ToolCall], content: str) -> str:
        """A tag for each call, each on lines of its own."""
        bodies = [dump_json({"name": c.name, "arguments": dict(c.arguments)}, [THINK_END]) for c in calls]
        return after_content(content, "\n".join(f"{_OPEN}\n{body}\n{_CLOSE}" for body in bodies))

    def result_text(self, name: str, text: str) -> str:
        """The answer in its tag."""
        return f"<tool_response>\n{text}\n</tool_response>"


def _read_body(text: str, start: int, close: int) -> JsonRead:
    """The JSON of a call and the index of its closing tag. A closing tag inside a string of valid JSON is text."""
    try:
        return read_whole_json(text, start, close)._replace(end=close)
    except ValueError:
        value = read_valid_json(text, start)
        if value is None or not text.startswith(_CLOSE, end := skip_spaces(text, value.end)):
            raise
        return value._replace(end=end)
