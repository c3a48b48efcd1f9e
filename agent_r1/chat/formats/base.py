"""The `ToolFormat` protocol, the registry of formats, and what all share: thinking, calls, error messages.

A format parses the text of one action and never raises on what a model wrote: a malformed call becomes `parse_error`, a
sentence the model can act upon. A call that could be repaired is accepted, and `repairs` lists what was repaired.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agent_r1.chat.formats.near_json import MISSING_BRACE, dump_json
from agent_r1.codec import is_deeper_than
from agent_r1.errors import ConfigError
from agent_r1.registry import Registry
from agent_r1.types import MAX_ARGUMENT_DEPTH, ToolCall, ToolSchema, turn_call_id

THINK, THINK_END = "<think>", "</think>"
THINKING = {THINK: THINK_END}
CUT = "it was cut by the length limit"
_MAX_ERRORS, _MAX_REPORTED = 16, 3  # of a thousand broken calls only the first ones are reported


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedText:
    """The parsed text of an action."""

    content: str
    """The text outside calls."""
    tool_calls: tuple[ToolCall, ...]
    """Well-formed calls, in order; empty when `parse_error` is set."""
    parse_error: str | None
    """What was wrong, in words the model can act upon."""
    repairs: tuple[str, ...] = ()
    """One entry per repaired call, such as `call 1: trailing comma`."""
    final_answer: str | None = None
    """The final answer, in formats that mark it; None if nothing is marked."""
    history_text: str | None = None
    """Replaces the text in a chat history, in formats whose marks the template writes; None: the text itself."""


class ToolFormat(Protocol):
    """How a model writes calls, and how tools and results are written for it.

    Optional: `always_as_text`, `end_of_turn`, and for streams `call_openings`, the texts with which calls begin
    (without them a turn with tools is streamed at its end), and `rewrites_text`, for formats that set `history_text`.
    """

    stop_tokens: tuple[str, ...]
    """Tokens that end a turn in this format, besides the tokenizer's; those that the vocabulary lacks are ignored."""

    def parse(self, text: str, *, truncated: bool) -> ParsedText:
        """Find the calls in `text`; `truncated` says the text was cut by the token limit."""
        ...

    def schemas_text(self, tools: Sequence[ToolSchema]) -> str:
        """What the system message says about the tools when the chat template cannot show them."""
        ...

    def call_text(self, calls: Sequence[ToolCall], content: str) -> str:
        """How a model writes these calls after `content`; `parse` must give both back."""
        ...

    def result_text(self, name: str, text: str) -> str:
        """A tool's answer, for the model to read; `name` is "" when the answer belongs to no call."""
        ...


tool_formats: Registry[type[ToolFormat]] = Registry(
    "tool format",
    accepts=lambda entry: isinstance(entry, type) and hasattr(entry, "parse"),
    expected="a class with the methods of ToolFormat",
)


def writes_as_text(tool_format: ToolFormat) -> bool:
    """Whether the format writes tools itself even for chat templates that could: it has `always_as_text = True`. By
    default the template writes them."""
    return bool(getattr(tool_format, "always_as_text", False))


def end_of_turn_of(tool_format: ToolFormat) -> Callable[[str], int | None] | None:
    """A format's `end_of_turn`, if it has one: plain-text formats, whose calls end with no token, do.

    It returns the index at which a model that did not stop after its call continued (with the tool's answer, say), or
    None.
    """
    end_of_turn: Callable[[str], int | None] | None = getattr(tool_format, "end_of_turn", None)
    return end_of_turn


def marks_of_own_turn(tool_format: ToolFormat) -> str:
    """Text with the marks that a model writes inside its turn: those of thinking and of a call in this format."""
    call = ToolCall(name="code_interpreter", arguments={"code": "1"})  # the one call that every format can write
    try:
        return f"{THINK} {THINK_END} {tool_format.call_text([call], '')}"
    except ConfigError:
        return f"{THINK} {THINK_END}"


class CallParser:
    """The calls, repairs and mistakes found so far in one text.

    >>> parser = CallParser('Hm. <call>add</call>', example="<call>NAME</call>")
    >>> parser.keep_text(0, 4)
    >>> parser.add("add", {})
    >>> parser.parsed(truncated=False).content
    'Hm.'
    """

    def __init__(self, text: str, *, example: str) -> None:
        self.text = text
        self.example = example
        self.calls: list[ToolCall] = []
        self.position = 0
        """Where `marks` continues to search."""
        self.still_thinking = False
        self._kept: list[str] = []
        self._errors: list[str] = []
        self._repairs: list[str] = []
        self._only_cut = True

    @property
    def next_number(self) -> int:
        """The number of the next call in messages; the first is 1."""
        return len(self.calls) + len(self._errors) + 1

    @property
    def gave_up(self) -> bool:
        """Whether there are so many errors that parsing stops."""
        return len(self._errors) >= _MAX_ERRORS

    def marks(self, pattern: re.Pattern[str], thinking: Mapping[str, str] = THINKING) -> Iterator[re.Match[str]]:
        """The matches of `pattern` outside thinking, in order. Text before each is kept, and after the last.

        Matches that are keys of `thinking` begin thinking, up to the text they map to. The search continues at
        `position`, the end of the match unless the caller moves it; a caller that stops early has recorded an error.
        """
        self.position = end_of_given_thinking(self.text)
        self.keep_text(0, self.position)
        while not self.gave_up and (mark := pattern.search(self.text, self.position)):
            if mark.group() in thinking:
                self.position = self._keep_thinking(self.position, mark.end(), thinking[mark.group()])
                continue
            self.keep_text(self.position, mark.start())
            self.position = mark.end()
            yield mark
        self.keep_text(self.position, len(self.text))

    def keep_text(self, start: int, end: int) -> None:
        """Keep this part of the text as content."""
        self._kept.append(self.text[start:end])

    def _keep_thinking(self, start: int, opening: int, closing: str) -> int:
        """Keep the text from `start` to the end of the thinking that opens at `opening`. Returns the index after it."""
        end = self.text.find(closing, opening)
        self.still_thinking = end < 0
        end = len(self.text) if end < 0 else end + len(closing)
        self.keep_text(start, end)
        return end

    def add(
        self, name: str, arguments: Mapping[str, Any], repairs: Sequence[str] = (), *, is_cut: bool = False
    ) -> None:
        """Add a call; `is_cut` says that the text was cut where the call ends."""
        if is_cut and MISSING_BRACE in repairs:
            self.malformed(CUT)
            return
        if is_deeper_than(dict(arguments), MAX_ARGUMENT_DEPTH):
            self.malformed(f"its arguments are nested more than {MAX_ARGUMENT_DEPTH} levels deep")
            return
        if repairs:
            self._repairs.append(f"call {len(self.calls) + 1}: {', '.join(repairs)}")
        # Nine letters and digits: Mistral's templates accept nothing else.
        self.calls.append(ToolCall(name=name, arguments=arguments, call_id=turn_call_id(len(self.calls))))

    def malformed(self, reason: str) -> None:
        """Record that the next call is malformed."""
        self.error(f"Tool call {self.next_number} is malformed: {reason}", is_cut=reason == CUT)

    def error(self, sentence: str, *, is_cut: bool = False) -> None:
        """Record a mistake, in words for the model."""
        self._errors.append(sentence)
        self._only_cut = self._only_cut and is_cut

    def parsed(self, *, truncated: bool, content: str | None = None) -> ParsedText:
        """The result. One malformed call makes the whole action malformed: no call of it runs."""
        if not self._errors and not self.calls:
            if truncated:
                thinking = " in the middle of thinking" if self.still_thinking else ""
                self.error(f"The answer was cut by the length limit{thinking}", is_cut=True)
            elif self.still_thinking:
                self.error("The thinking was never closed: close it, then write the answer or a call")
        if self._errors:
            return ParsedText(content=self.text, tool_calls=(), parse_error=self._error_text())
        text = "".join(self._kept).strip() if content is None else content
        return ParsedText(content=text, tool_calls=tuple(self.calls), parse_error=None, repairs=tuple(self._repairs))

    def _error_text(self) -> str:
        reported = self._errors[:_MAX_REPORTED]
        if len(self._errors) > _MAX_REPORTED:
            reported.append("There are more mistakes")
        return ". ".join(reported) + "." + ("" if self._only_cut else f" Write a call as {self.example}")


def end_of_given_thinking(text: str) -> int:
    """The index after thinking that the prompt opened for the model; 0 when there is none.

    >>> end_of_given_thinking("7 times 3</think>21")
    17
    """
    end = text.find(THINK_END)
    return 0 if end < 0 or text.find(THINK, 0, end) >= 0 else end + len(THINK_END)


def call_parts(call: Any, arguments_key: str) -> tuple[str, Mapping[str, Any], tuple[str, ...]]:
    """Name, arguments and repairs of a call that is a JSON object; ValueError says what is wrong with it.

    >>> call_parts({"name": "add", "arguments": {"a": 1}}, "arguments")
    ('add', {'a': 1}, ())
    """
    if not isinstance(call, dict):
        raise ValueError(f'expected an object with "name" and "{arguments_key}", found {kind_of(call)}')
    name = call.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError(f'"name" must be the name of a tool, found {kind_of(name) if "name" in call else "no name"}')
    key, repairs = _find_arguments(call, arguments_key)
    arguments = call.get(key, {})
    if isinstance(arguments, str):
        arguments, repairs = _parse_if_json(arguments), (*repairs, f'"{key}" was a string of JSON')
    if not isinstance(arguments, dict):
        raise ValueError(f'"{key}" must be an object, found {kind_of(arguments)}')
    return name, arguments, repairs


def _find_arguments(call: Mapping[str, Any], key: str) -> tuple[str, tuple[str, ...]]:
    """The key of the arguments, and the repair if it is the other format's key."""
    if key in call:
        return key, ()
    other = {"arguments": "parameters", "parameters": "arguments"}[key]
    if other in call:
        return other, (f'"{other}" instead of "{key}"',)
    unknown = [name for name in call if name not in ("name", "id", "type")]
    if unknown:
        raise ValueError(f'"{key}" is missing, found {json.dumps(unknown[0])} beside "name"')
    return key, ()


def _parse_if_json(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def kind_of(value: Any) -> str:
    """What a JSON value is, in words.

    >>> kind_of([1])
    'a list'
    """
    names = {str: "a string", bool: "true or false", int: "a number", float: "a number", list: "a list"}
    if value == "":
        return "an empty string"
    return "null" if value is None else names.get(type(value), "an object")


def schema_lines(tools: Sequence[ToolSchema]) -> str:
    """The schemas, one JSON object per line."""
    return "\n".join(dump_json(tool.get("function", tool)) for tool in tools)


def after_content(content: str, calls: str, separator: str = "\n") -> str:
    """`calls` after `content`, if there is any.

    >>> after_content("Hm.", "<call>")
    'Hm.\\n<call>'
    """
    return content + separator + calls if content and calls else content + calls
