"""The tool format `code_blocks`: a Python block in Markdown is run, and its output comes back as a block.

    The sum is found by brute force.
    ```python
    print(sum(range(1, 101)))
    ```

is a call of the tool `python`. Models that were trained on code write programs in this form without being taught, and
no character of the program needs escaping. No token ends a call: a model that continues after its block, for example
with an invented output, is stopped there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agent_r1.chat import ParsedText, tool_formats
from agent_r1.chat.formats.base import CUT, CallParser, after_content, end_of_given_thinking
from agent_r1.errors import ConfigError
from agent_r1.types import ToolCall, ToolSchema

TOOL_NAME = "python"
_NAMES = (TOOL_NAME, "code_interpreter")
_OPEN = re.compile(r"<think>|^[ \t]*```(?:python|py)[ \t]*\n", re.MULTILINE)
_CLOSE = re.compile(r"^[ \t]*```[ \t]*$", re.MULTILINE)
_EXAMPLE = "```python\nprint(1 + 1)\n```"


@tool_formats.register("code_blocks")
class CodeBlocks:
    """Each Python block is one call of the tool `python`.

    >>> CodeBlocks().parse("Add.\\n```python\\nprint(1 + 1)\\n```", truncated=False).tool_calls[0].arguments
    {'code': 'print(1 + 1)'}
    """

    stop_tokens: tuple[str, ...] = ()
    always_as_text: bool = True
    call_openings: tuple[str, ...] = ("```python", "```py")

    def parse(self, text: str, *, truncated: bool) -> ParsedText:
        """Find the blocks outside thinking."""
        parser = CallParser(text, example=_EXAMPLE)
        for mark in parser.marks(_OPEN):
            close = _CLOSE.search(text, mark.end())
            if close is None:
                parser.malformed(CUT if truncated else "the block is not closed with ```")
                break
            code = text[mark.end() : close.start()].removesuffix("\n")
            parser.position = close.end()
            if code.strip():
                parser.add(TOOL_NAME, {"code": code})
            else:
                parser.malformed("there is no code in it")
        return parser.parsed(truncated=truncated)

    def end_of_turn(self, text: str) -> int | None:
        """Where anything but another block follows a block.

        >>> text = "```python\\nprint(2)\\n```\\nOutput: 2"
        >>> text[: CodeBlocks().end_of_turn(text)]
        '```python\\nprint(2)\\n```'
        """
        position, end = end_of_given_thinking(text), None
        while mark := _OPEN.search(text, position):
            if end is not None and text[end : mark.start()].strip():
                return end
            if mark.group() == "<think>":
                position = text.find("</think>", mark.end())
                if position < 0:
                    return None
                continue
            close = _CLOSE.search(text, mark.end())
            if close is None:
                return None
            position = end = close.end()
        return end if end is not None and text[end:].strip() else None

    def schemas_text(self, tools: Sequence[ToolSchema]) -> str:
        """How to run a program."""
        names = [tool.get("function", tool).get("name") for tool in tools]
        if names != [TOOL_NAME]:
            raise ConfigError(f"the tool format code_blocks knows one tool, {TOOL_NAME}; found {', '.join(names)}")
        return (
            f"To run a program, write it as a block and stop there:\n{_EXAMPLE}\n"
            "Its output comes in the next message. Variables last from block to block."
        )

    def call_text(self, calls: Sequence[ToolCall], content: str) -> str:
        """A block for each call."""
        blocks = []
        for call in calls:
            if call.name not in _NAMES or set(call.arguments) != {"code"}:
                raise ConfigError(
                    f'the tool format code_blocks writes calls of {TOOL_NAME} with "code", '
                    f"found {call.name} with {sorted(call.arguments)}"
                )
            blocks.append(f"```python\n{call.arguments['code']}\n```")
        return after_content(content, "\n".join(blocks))

    def result_text(self, name: str, text: str) -> str:
        """The output as a block."""
        return f"```output\n{text}\n```"
