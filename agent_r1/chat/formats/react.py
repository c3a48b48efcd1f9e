"""The ReAct format (arXiv:2210.03629): labelled lines of plain text, for models that were trained on no other.

    Thought: I need the price.
    Action: price
    Action Input: {"item": "apple"}

An input that is a JSON object is the arguments; any other text is the single argument `input`, or the only argument the
tool requires. The answer of a tool comes as `Observation:`, and `Final Answer:` ends the episode. No token ends a call:
a model that continues after its actions, with an invented observation or with more thoughts and answers, is stopped
there, as in the paper.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from agent_r1.chat.formats.base import (
    CUT,
    THINK,
    THINK_END,
    CallParser,
    ParsedText,
    after_content,
    end_of_given_thinking,
    schema_lines,
    tool_formats,
)
from agent_r1.chat.formats.near_json import dump_json, read_valid_json, read_whole_json
from agent_r1.types import TEXT_ARGUMENT, ToolCall, ToolSchema

_LABEL = re.compile(
    r"<think>|(?:^|(?<=</think>))[ \t]*(Thought|Action Input|Action|Observation|Final Answer)[ \t]*:", re.MULTILINE
)
_EXAMPLE = 'Action: NAME\nAction Input: {"KEY": VALUE}'


class _Section(NamedTuple):
    """A label and the text that belongs to it."""

    label: str
    start: int
    body: int
    end: int


@tool_formats.register("react")
class ReActFormat:
    """Labelled lines. `content` is the final answer, or without one all that is not an action.

    >>> parsed = ReActFormat().parse("Thought: Hm.\\nAction: price\\nAction Input: apple", truncated=False)
    >>> parsed.tool_calls[0].arguments, parsed.content
    ({'input': 'apple'}, 'Thought: Hm.')
    """

    stop_tokens: tuple[str, ...] = ()
    always_as_text: bool = True

    def parse(self, text: str, *, truncated: bool) -> ParsedText:
        """Find the actions outside thinking."""
        parser = CallParser(text, example=_EXAMPLE)
        sections = _sections(text, parser)
        labels = [section.label for section in sections]
        if "Observation" in labels:
            parser.error("Observation is written for you: stop after Action Input and wait for it")
        elif "Final Answer" in labels and "Action" in labels:
            parser.error("Found both Action and Final Answer: write one of them")
        else:
            _read_actions(sections, parser, truncated=truncated)
        final = [text[section.body : section.end].strip() for section in sections if section.label == "Final Answer"]
        answer = "\n".join(final) if final else None
        parsed = parser.parsed(truncated=truncated, content=answer)
        return parsed if parsed.parse_error else replace(parsed, final_answer=answer)

    def end_of_turn(self, text: str) -> int | None:
        """Where a model continues after its actions instead of waiting for their results.

        >>> text = "Action: price\\nAction Input: apple\\nObservation: 7\\nFinal Answer: 7"
        >>> text[: ReActFormat().end_of_turn(text)]
        'Action: price\\nAction Input: apple\\n'
        """
        has_acted = False
        for section in _sections(text, CallParser(text, example=_EXAMPLE)):
            if section.label in ("Action", "Action Input"):
                has_acted = True
                body = section if section.label == "Action Input" else _unlabelled_input(section, text)
                end = None if body is None else _end_of_object(body, text)
                if end is not None:
                    return end
            elif has_acted:
                return section.start
        return None

    def schemas_text(self, tools: Sequence[ToolSchema]) -> str:
        """The schemas and how to call."""
        return (
            f"You can use these tools:\n{schema_lines(tools)}\n"
            "Write in this form, and stop after Action Input:\n"
            f"Thought: what to do next\n{_EXAMPLE}\n"
            "The answer comes as Observation. When you know enough, write:\nFinal Answer: the answer"
        )

    def call_text(self, calls: Sequence[ToolCall], content: str) -> str:
        """Two lines for each call, the input as JSON."""
        pairs = [f"Action: {c.name}\nAction Input: {dump_json(dict(c.arguments), [THINK, THINK_END])}" for c in calls]
        return after_content(content, "\n".join(pairs))

    def result_text(self, name: str, text: str) -> str:
        """The answer as an observation."""
        return f"Observation: {text}"


def _sections(text: str, parser: CallParser) -> list[_Section]:
    """The labelled parts outside thinking; text before the first is kept."""
    marks: list[tuple[str, int, int]] = []
    position = end_of_given_thinking(text)
    while mark := _LABEL.search(text, position):
        if mark.group(1) is None:
            end = text.find(THINK_END, mark.end())
            parser.still_thinking = end < 0
            position = len(text) if end < 0 else end + len(THINK_END)
        else:
            marks.append((mark.group(1), mark.start(), mark.end()))
            position = mark.end()
    ends = [*(start for _, start, _ in marks[1:]), len(text)]
    parser.keep_text(0, marks[0][1] if marks else len(text))
    return [_Section(label, start, body, end) for (label, start, body), end in zip(marks, ends, strict=False)]


def _read_actions(sections: Sequence[_Section], parser: CallParser, *, truncated: bool) -> None:
    """Add the calls: each `Action` needs the `Action Input` that follows it."""
    text = parser.text
    for index, section in enumerate(sections):
        if parser.gave_up:
            break
        following = sections[index + 1] if index + 1 < len(sections) else None
        if section.label == "Action":
            name = text[section.body : section.end].strip()
            unlabelled = _unlabelled_input(section, text)
            if unlabelled is not None and (following is None or following.label != "Action Input"):
                name = text[section.body : unlabelled.start].strip()
                is_cut = truncated and following is None
                _read_input(name, unlabelled, parser, is_cut=is_cut, repairs=("Action Input: was missing",))
            elif following is None and truncated:
                parser.malformed(CUT)
            elif not name or "\n" in name:
                parser.malformed(f"Action must be the name of a tool, found {'several lines' if name else 'nothing'}")
            elif following is None or following.label != "Action Input":
                parser.malformed("Action Input is missing after Action")
            else:
                _read_input(name, following, parser, is_cut=truncated and following.end == len(text))
        elif section.label == "Action Input":
            if index == 0 or sections[index - 1].label != "Action":
                parser.malformed("Action Input without Action before it")
        else:
            parser.keep_text(section.start, section.end)


def _unlabelled_input(action: _Section, text: str) -> _Section | None:
    """The JSON object on the line below an action's name, which some models write without its label."""
    body = text[action.body : action.end]
    start = action.end - len(body.lstrip())
    line_end = text.find("\n", start, action.end)
    if line_end < 0 or not text[line_end : action.end].lstrip().startswith("{"):
        return None
    return _Section("Action Input", line_end, line_end, action.end)


def _end_of_object(section: _Section, text: str) -> int | None:
    """Where an input that is a JSON object ends, if other lines follow it; None where it fills its section."""
    start = section.end - len(text[section.body : section.end].lstrip())
    value = read_valid_json(text, start) if text.startswith("{", start) else None
    if value is None or not text[value.end : section.end].lstrip(" \t").startswith("\n"):
        return None
    return value.end if text[value.end : section.end].strip() else None


def _read_input(
    name: str, section: _Section, parser: CallParser, *, is_cut: bool, repairs: tuple[str, ...] = ()
) -> None:
    text = parser.text[section.body : section.end].strip()
    arguments: Any = text
    if text.startswith(("{", "```")):
        try:
            arguments, _, more = read_whole_json(text, 0, len(text))
            repairs += more
        except ValueError as error:
            if is_cut or text.startswith("{"):
                parser.malformed(CUT if is_cut else f"Action Input is {error}")
                return
    if isinstance(arguments, dict):
        parser.add(name, arguments, repairs, is_cut=is_cut)
    elif is_cut:
        parser.malformed(CUT)
    else:
        parser.add(name, {TEXT_ARGUMENT: text} if text else {})
