"""The ReTool format (arXiv:2504.11536): Python in `<code>` tags is run, its output comes in `<interpreter>` tags."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
from agent_r1.errors import ConfigError
from agent_r1.types import ToolCall, ToolSchema

TOOL_NAME = "code_interpreter"
_OPEN, _CLOSE, _OUTPUT = "<code>", "</code>", "<interpreter>"
_MARK = re.compile("<think>|</?code>|<interpreter>")
_FENCE, _FENCE_END = re.compile(r"\s*```(?:python|py)?[ \t]*\n"), "```"
_EXAMPLE = "<code>\n```python\nprint(1 + 1)\n```\n</code>"


@tool_formats.register("retool")
class ReToolFormat:
    """Each `<code>` block is one call of the tool `code_interpreter` with the argument `code`.

    >>> text = "<code>\\n```python\\nprint(1 + 1)\\n```\\n</code>"
    >>> ReToolFormat().parse(text, truncated=False).tool_calls[0].arguments
    {'code': 'print(1 + 1)'}
    """

    stop_tokens: tuple[str, ...] = ()
    call_openings: tuple[str, ...] = (_OPEN, _CLOSE, _OUTPUT)

    def parse(self, text: str, *, truncated: bool) -> ParsedText:
        """Find the code outside thinking."""
        parser = CallParser(text, example=_EXAMPLE)
        for mark in parser.marks(_MARK):
            if mark.group() == _CLOSE:
                parser.error(f"Tool call is malformed: {_CLOSE} without {_OPEN}")
            elif mark.group() == _OUTPUT:
                parser.error(f"{_OUTPUT} is written for you: stop after {_CLOSE} and wait for the output")
                break
            else:
                close = text.find(_CLOSE, mark.end())
                if close < 0:
                    parser.malformed(CUT if truncated else f"{_CLOSE} is missing")
                    break
                _add_code(text[mark.end() : close], parser)
                parser.position = close + len(_CLOSE)
        return parser.parsed(truncated=truncated)

    def end_of_turn(self, text: str) -> int | None:
        """Where the first output begins that follows code."""
        position, has_code = end_of_given_thinking(text), False
        while mark := _MARK.search(text, position):
            if mark.group() == _OUTPUT:
                return mark.start() if has_code else None
            has_code = has_code or mark.group() == _OPEN
            closing = {THINK: THINK_END, _OPEN: _CLOSE}.get(mark.group(), "")
            close = text.find(closing, mark.end())
            if close < 0:
                break
            position = close + len(closing)
        return None

    def schemas_text(self, tools: Sequence[ToolSchema]) -> str:
        """How to run code."""
        others = [tool for tool in tools if tool.get("function", tool).get("name") != TOOL_NAME]
        if others:
            raise ConfigError(f"the tool format retool knows one tool, {TOOL_NAME}; found {schema_lines(others)}")
        return (
            f"You can run Python code by writing it between tags:\n{_EXAMPLE}\n"
            "What it prints comes back in <interpreter> tags."
        )

    def call_text(self, calls: Sequence[ToolCall], content: str) -> str:
        """A fenced block for each call."""
        blocks = []
        for call in calls:
            if call.name != TOOL_NAME or set(call.arguments) != {"code"}:
                raise ConfigError(
                    f'the tool format retool writes calls of {TOOL_NAME} with "code", '
                    f"found {call.name} with {sorted(call.arguments)}"
                )
            blocks.append(f"{_OPEN}\n```python\n{call.arguments['code']}\n```\n{_CLOSE}")
        return after_content(content, "\n".join(blocks))

    def result_text(self, name: str, text: str) -> str:
        """The output in its tag."""
        return f"<interpreter>\n{text}\n</interpreter>"


def _add_code(block: str, parser: CallParser) -> None:
    fence = _FENCE.match(block)
    fenced = block[fence.end() :].rstrip() if fence else ""
    is_closed = fenced.endswith(_FENCE_END)
    code = fenced.removesuffix(_FENCE_END).removesuffix("\n") if is_closed else block.strip("\n")
    if not code.strip():
        parser.malformed("there is no code in it")
    elif fence and not is_closed:
        parser.malformed("the code fence ``` is not closed")
    else:
        parser.add(TOOL_NAME, {"code": code})
