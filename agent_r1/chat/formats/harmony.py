"""The harmony format of GPT-OSS: an action is a sequence of messages, each on a channel.

    <|channel|>analysis<|message|>I need the price.<|end|>
    <|start|>assistant<|channel|>commentary to=functions.price <|constrain|>json<|message|>{"item": "apple"}<|call|>

(all on one line). `analysis` is thinking, `commentary` holds calls and remarks, `final` the answer. A message with a
recipient is a call, unless it is thinking. Error messages to the model contain no marks: they are control tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from agent_r1.chat.formats.base import CUT, CallParser, ParsedText, kind_of, schema_lines, tool_formats
from agent_r1.chat.formats.near_json import dump_json, read_whole_json
from agent_r1.types import ToolCall, ToolSchema

_MESSAGE = "<|message|>"
_END = re.compile(r"<\|(?:end|call|return|start)\|>")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w{1,64})")
_RECIPIENT = re.compile(r"\bto=([^\s<]{1,256})")
_MARKS = re.compile(r"<\|\w+\|>")
_OWN_MARKS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|message|>", "<|channel|>")
_EXAMPLE = 'a message on the commentary channel to=functions.NAME with the arguments as JSON: {"KEY": VALUE}'


class _Part(NamedTuple):
    """One message of an action."""

    channel: str
    recipient: str
    start: int
    end: int
    closed: bool


@tool_formats.register("harmony")
class HarmonyFormat:
    """The harmony format. `content` is the final answer, or without one the thinking and remarks beside the calls.

    >>> text = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>'
    >>> HarmonyFormat().parse(text, truncated=False).tool_calls
    (ToolCall(name='add', arguments={'a': 1}, call_id='call00000'),)
    """

    stop_tokens: tuple[str, ...] = ("<|call|>", "<|return|>")
    rewrites_text: bool = True

    def parse(self, text: str, *, truncated: bool) -> ParsedText:
        """Find the messages, and among them the calls."""
        parsed, answer = self._parse(text, truncated=truncated)
        if parsed.tool_calls:
            return parsed
        spoken = parsed.content if parsed.parse_error is None else text
        # A template that finds its own marks in a message refuses it.
        return replace(parsed, final_answer=answer, history_text=_MARKS.sub(" ", spoken).strip())

    def _parse(self, text: str, *, truncated: bool) -> tuple[ParsedText, str | None]:
        """The parsed text, and the answer on the final channel."""
        parser = CallParser(text, example=_EXAMPLE)
        parts = _parts(text)
        spoken = {"final": list[str](), "other": list[str]()}
        for part in parts:
            if parser.gave_up:
                break
            is_cut = truncated and not part.closed
            if part.recipient and part.channel != "analysis":
                _read_call(text, part, parser, is_cut=is_cut)
                continue
            spoken["final" if part.channel == "final" else "other"].append(text[part.start : part.end].strip())
        if not parts:
            if "<|channel|>" in text:
                parser.malformed(CUT if truncated else "its message is missing")
            return parser.parsed(truncated=truncated, content=text.strip()), None
        parser.still_thinking = parts[-1].channel == "analysis"
        if parser.still_thinking and not truncated and not parser.calls:
            parser.error("There is only thinking: go on with the answer on the final channel or with a call")
        parsed = parser.parsed(truncated=truncated, content="\n".join(spoken["final"] or spoken["other"]))
        is_over = bool(spoken["final"]) and not parsed.tool_calls and parsed.parse_error is None
        return parsed, parsed.content if is_over else None

    def schemas_text(self, tools: Sequence[ToolSchema]) -> str:
        """The schemas and how to call."""
        return f"# Tools\n\n## functions\n\n{schema_lines(tools)}\n\nTo call one, write {_EXAMPLE}"

    def call_text(self, calls: Sequence[ToolCall], content: str) -> str:
        """The content as thinking, then a message for each call."""
        messages = [f"<|channel|>analysis{_MESSAGE}{content}<|end|>"] if content and calls else []
        for call in calls:
            body = dump_json(dict(call.arguments), _OWN_MARKS)
            messages.append(f"<|channel|>commentary to=functions.{call.name} <|constrain|>json{_MESSAGE}{body}<|call|>")
        return "<|start|>assistant".join(messages) or (content and f"<|channel|>final{_MESSAGE}{content}")

    def result_text(self, name: str, text: str) -> str:
        """The message a tool sends to the assistant."""
        return f"<|start|>functions.{name} to=assistant<|channel|>commentary{_MESSAGE}{text}<|end|>"


def _parts(text: str) -> list[_Part]:
    """The messages of an action."""
    parts: list[_Part] = []
    header = 0
    while (mark := text.find(_MESSAGE, header)) >= 0:
        start = mark + len(_MESSAGE)
        end = _END.search(text, start)
        stop = end.start() if end else len(text)
        named = text[header:mark]
        channel, recipient = _CHANNEL.search(named), _RECIPIENT.search(named)
        parts.append(
            _Part(
                channel=channel.group(1) if channel else "final",
                recipient=recipient.group(1) if recipient else "",
                start=start,
                end=stop,
                closed=end is not None,
            )
        )
        header = end.end() if end else len(text)
    return parts


def _read_call(text: str, part: _Part, parser: CallParser, *, is_cut: bool) -> None:
    try:
        arguments, _, repairs = read_whole_json(text, part.start, part.end)
        if not isinstance(arguments, dict):
            raise ValueError(f"the arguments must be an object, found {kind_of(arguments)}")
    except ValueError as error:
        parser.malformed(CUT if is_cut else str(error))
        return
    name = part.recipient.removeprefix("functions.")
    if not name:
        parser.malformed("to=functions. names no tool")
    else:
        parser.add(name, arguments, repairs, is_cut=is_cut)
