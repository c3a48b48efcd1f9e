"""The Llama 3 format: bare JSON objects in the text, after a `<|python_tag|>` or without one, `;` between several."""

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
from agent_r1.chat.formats.near_json import dump_json, read_json
from agent_r1.types import ToolCall, ToolSchema

_TAG = "<|python_tag|>"
_MARK = re.compile(r"<think>|<\|python_tag\|>\s*|\{\s*[\"'](?:name|type)[\"']\s*:")
_ARGUMENTS = re.compile(r"[\"'](?:parameters|arguments)[\"']\s*:")
_SEPARATOR = re.compile(r"\s*;\s*")
_EXAMPLE = '{"name": "NAME", "parameters": {"KEY": VALUE}}'


@tool_formats.register("llama3")
class Llama3Format:
    """Llama 3.1 and later: `{"name": ..., "parameters": {...}}`. An object without parameters is an answer, not a call.

    >>> text = 'Let me see. {"name": "add", "parameters": {"a": 1}}; {"name": "now", "parameters": {}}'
    >>> [call.name for call in Llama3Format().parse(text, truncated=False).tool_calls]
    ['add', 'now']
    """

    stop_tokens: tuple[str, ...] = ("<|eom_id|>", "<|eot_id|>")
    call_openings: tuple[str, ...] = ("<|python_tag|>", "{")

    def parse(self, text: str, *, truncated: bool) -> ParsedText:
        """Find the calls outside thinking. What follows a malformed one is not read: nothing says where it ends."""
        parser = CallParser(text, example=_EXAMPLE)
        for mark in parser.marks(_MARK):
            tagged = mark.group().startswith(_TAG)
            start = mark.end() if tagged else mark.start()
            try:
                call, end, repairs = read_json(text, start)
                if not tagged and not (isinstance(call, dict) and call.keys() & {"parameters", "arguments"}):
                    parser.keep_text(start, end)
                    parser.position = end
                    continue
                name, arguments, more = call_parts(call, "parameters")
                parser.add(name, arguments, (*repairs, *more), is_cut=truncated and end == len(text))
            except ValueError as error:
                if tagged or _ARGUMENTS.search(text, start):
                    parser.malformed(CUT if truncated else str(error))
                    break
                parser.keep_text(start, len(text))
                parser.position = len(text)
                continue
            separator = _SEPARATOR.match(text, end)
            parser.position = separator.end() if separator else end
        return parser.parsed(truncated=truncated)

    def schemas_text(self, tools: Sequence[ToolSchema]) -> str:
        """The schemas and how to call."""
        return (
            f"You can call these tools:\n{schema_lines(tools)}\n"
            f"To call one, answer with JSON and nothing else:\n{_EXAMPLE}\nPut ; between several calls."
        )

    def call_text(self, calls: Sequence[ToolCall], content: str) -> str:
        """JSON objects with `;` between them."""
        bodies = [dump_json({"name": c.name, "parameters": dict(c.arguments)}, [THINK_END]) for c in calls]
        return after_content(content, "; ".join(bodies))

    def result_text(self, name: str, text: str) -> str:
        """The answer after the tool's name."""
        return f"Result of {name}:\n{text}" if name else f"Result:\n{text}"
