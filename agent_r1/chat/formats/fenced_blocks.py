"""`FencedBlocks`: the base of tool formats in which a block of Markdown is a call.

    The sum is found by brute force.
    ```python
    print(sum(range(1, 101)))
    ```

is a call of the tool whose blocks say `python`. Models that were trained on code write such blocks without being
taught, and no character of a program needs escaping. No token ends a call: a turn ends with its block, and what a model
writes after it, such as an invented output, is not part of the turn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from agent_r1.chat.formats.base import (
    CUT,
    THINK,
    THINK_END,
    CallParser,
    ParsedText,
    after_content,
    end_of_given_thinking,
)
from agent_r1.errors import ConfigError
from agent_r1.types import ToolCall, ToolSchema

_CLOSE = re.compile(r"^[ \t]*```[ \t]*$", re.MULTILINE)
_LANGUAGE = re.compile(r"[\w+#.-]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockTool:
    """A tool whose calls are blocks."""

    name: str
    """The tool."""
    argument: str
    """Its one argument, which is the text of the block."""
    example: str
    """A program, for the instructions."""
    languages: tuple[str, ...]
    """What such a block says after its opening fence; the first one is written."""

    def block(self, program: str) -> str:
        """A call as text."""
        return f"```{self.languages[0]}\n{program}\n```"


class FencedBlocks:
    """A tool format whose calls are fenced blocks. A format of yours names itself and its tools:

    >>> class SqlBlocks(FencedBlocks):
    ...     name = "sql_blocks"
    ...     tools = (BlockTool(name="sql", argument="query", example="SELECT 1", languages=("sql",)),)
    >>> SqlBlocks().parse("```sql\\nSELECT 2\\n```", truncated=False).tool_calls[0].arguments
    {'query': 'SELECT 2'}
    """

    name: ClassVar[str]
    """The name of the format, for errors."""
    tools: ClassVar[tuple[BlockTool, ...]]
    """The tools that can be called."""
    instructions: ClassVar[str] = (
        "To run a program, write it as a block and stop there:\n{examples}\nIts output comes in the next message."
    )
    """What the system message says; `{examples}` are blocks of the tools that the task has."""
    several_per_turn: ClassVar[bool] = True
    """Whether blocks that follow each other are all called; otherwise a turn ends with its first one."""

    stop_tokens: tuple[str, ...] = ()
    always_as_text: bool = True
    call_openings: tuple[str, ...] = ()

    _by_language: ClassVar[dict[str, BlockTool]]
    _open: ClassVar[re.Pattern[str]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._by_language = {language: tool for tool in cls.tools for language in tool.languages}
        wrong = [language for language in cls._by_language if not _LANGUAGE.fullmatch(language)]
        if wrong or len(cls._by_language) < sum(len(tool.languages) or 1 for tool in cls.tools):
            raise ConfigError(
                f"the tool format {cls.name} needs languages for each of its tools, which no other tool has; found "
                f"{[tool.languages for tool in cls.tools]}"
            )
        words = "|".join(map(re.escape, cls._by_language))
        cls._open = re.compile(rf"{THINK}|^[ \t]*```({words})[ \t]*\n", re.MULTILINE)
        cls.call_openings = tuple(f"```{language}" for language in cls._by_language)

    def parse(self, text: str, *, truncated: bool) -> ParsedText:
        """Find the blocks outside thinking."""
        parser = CallParser(text, example=self.tools[0].block(self.tools[0].example))
        for mark in parser.marks(self._open):
            close = _CLOSE.search(text, mark.end())
            if close is None:
                parser.malformed(CUT if truncated else "the block is not closed with ```")
                break
            program = text[mark.end() : close.start()].removesuffix("\n")
            parser.position = close.end()
            tool = self._by_language[mark.group(1)]
            if program.strip():
                parser.add(tool.name, {tool.argument: program})
            else:
                parser.malformed("there is nothing in the block")
        return parser.parsed(truncated=truncated)

    def end_of_turn(self, text: str) -> int | None:
        """Where anything else follows a block, or where it follows the first one."""
        position, end = end_of_given_thinking(text), None
        while mark := self._open.search(text, position):
            if end is not None and (not self.several_per_turn or text[end : mark.start()].strip()):
                return end
            if mark.group() == THINK:
                position = text.find(THINK_END, mark.end())
                if position < 0:
                    return None
                continue
            close = _CLOSE.search(text, mark.end())
            if close is None:
                return None
            position = end = close.end()
        return end if end is not None and text[end:].strip() else None

    def schemas_text(self, tools: Sequence[ToolSchema]) -> str:
        """How to call the tools of a task."""
        tool_of = {tool.name: tool for tool in self.tools}
        names = [str(tool.get("function", tool).get("name")) for tool in tools]
        unknown = [name for name in names if name not in tool_of]
        if unknown:
            raise ConfigError(
                f"the tool format {self.name} has the tools {', '.join(tool_of)}; found {', '.join(unknown)}"
            )
        return self.instructions.format(
            examples="\nor\n".join(tool_of[name].block(tool_of[name].example) for name in names)
        )

    def call_text(self, calls: Sequence[ToolCall], content: str) -> str:
        """A block for each call."""
        return after_content(content, "\n".join(map(self._block, calls)))

    def _block(self, call: ToolCall) -> str:
        tool = next((tool for tool in self.tools if tool.name == call.name), None)
        if tool is None or set(call.arguments) != {tool.argument}:
            expected = ", ".join(f"{tool.name}({tool.argument})" for tool in self.tools)
            raise ConfigError(
                f"the tool format {self.name} writes calls of {expected}, found {call.name} with "
                f"{sorted(call.arguments)}"
            )
        program = str(call.arguments[tool.argument])
        if _CLOSE.search(program):
            raise ConfigError(
                f"the tool format {self.name} cannot write a program with a line ```, found {program!r:.80}"
            )
        return tool.block(program)

    def result_text(self, name: str, text: str) -> str:
        """The output as a block."""
        return f"```output\n{text}\n```"
