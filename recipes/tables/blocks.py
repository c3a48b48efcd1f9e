"""The tool format `table_blocks`: a block in Markdown is a call, ```sql of the tool `sql`, ```python of `python`.

    ```sql
    SELECT COUNT(*) FROM t WHERE year > 1990
    ```

Models that were trained on code write such blocks without being taught, and no character of a program needs escaping.
A turn ends with its block: what a model writes after it, such as an invented result, is not part of the turn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agent_r1.chat import ParsedText, tool_formats
from agent_r1.chat.formats.base import CUT, CallParser, after_content, end_of_given_thinking
from agent_r1.errors import ConfigError
from agent_r1.types import ToolCall, ToolSchema

ARGUMENTS = {"sql": "query", "python": "code"}
"""The one argument of each tool."""
_OPEN = re.compile(r"<think>|^[ \t]*```(sql|python)[ \t]*\n", re.MULTILINE)
_CLOSE = re.compile(r"^[ \t]*```[ \t]*$", re.MULTILINE)
_EXAMPLES = {"sql": "```sql\nSELECT COUNT(*) FROM t\n```", "python": "```python\nprint(len(rows))\n```"}


@tool_formats.register("table_blocks")
class TableBlocks:
    """Each SQL or Python block is one call.

    >>> TableBlocks().parse("```sql\\nSELECT 1\\n```", truncated=False).tool_calls[0].arguments
    {'query': 'SELECT 1'}
    """

    stop_tokens: tuple[str, ...] = ()
    always_as_text: bool = True
    call_openings: tuple[str, ...] = ("```sql", "```python")

    def parse(self, text: str, *, truncated: bool) -> ParsedText:
        """Find the blocks outside thinking."""
        parser = CallParser(text, example=_EXAMPLES["sql"])
        for mark in parser.marks(_OPEN):
            close = _CLOSE.search(text, mark.end())
            if close is None:
                parser.malformed(CUT if truncated else "the block is not closed with ```")
                break
            program = text[mark.end() : close.start()].removesuffix("\n")
            parser.position = close.end()
            if program.strip():
                parser.add(mark.group(1), {ARGUMENTS[mark.group(1)]: program})
            else:
                parser.malformed("there is nothing in the block")
        return parser.parsed(truncated=truncated)

    def end_of_turn(self, text: str) -> int | None:
        """Where anything follows the first block.

        >>> text = "```sql\\nSELECT 2\\n```\\n2"
        >>> text[: TableBlocks().end_of_turn(text)]
        '```sql\\nSELECT 2\\n```'
        """
        position = end_of_given_thinking(text)
        while mark := _OPEN.search(text, position):
            if mark.group() == "<think>":
                position = text.find("</think>", mark.end())
                if position < 0:
                    return None
                continue
            close = _CLOSE.search(text, mark.end())
            return close.end() if close is not None and text[close.end() :].strip() else None
        return None

    def schemas_text(self, tools: Sequence[ToolSchema]) -> str:
        """How to run a query or a program."""
        names = [tool.get("function", tool).get("name") for tool in tools]
        unknown = [str(name) for name in names if name not in ARGUMENTS]
        if unknown:
            raise ConfigError(
                f"the tool format table_blocks knows the tools {', '.join(ARGUMENTS)}; found {', '.join(unknown)}"
            )
        examples = "\nor\n".join(_EXAMPLES[name] for name in names)
        return f"To run a program, write one block and stop there:\n{examples}\nIts output comes in the next message."

    def call_text(self, calls: Sequence[ToolCall], content: str) -> str:
        """A block for each call."""
        blocks = []
        for call in calls:
            argument = ARGUMENTS.get(call.name)
            if argument is None or set(call.arguments) != {argument}:
                raise ConfigError(
                    f"the tool format table_blocks writes calls of {', '.join(ARGUMENTS)} with one argument, "
                    f"found {call.name} with {sorted(call.arguments)}"
                )
            blocks.append(f"```{call.name}\n{call.arguments[argument]}\n```")
        return after_content(content, "\n".join(blocks))

    def result_text(self, name: str, text: str) -> str:
        """The output as a block."""
        return f"```output\n{text}\n```"
