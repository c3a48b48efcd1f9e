"""The base of tool formats whose calls are fenced blocks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_r1.chat import BlockTool, FencedBlocks, ParsedText, ToolFormat
from agent_r1.chat.formats.base import marks_of_own_turn, writes_as_text
from agent_r1.errors import ConfigError
from agent_r1.types import ToolCall
from tests.helpers.fuzzing import cases

PAGE = (Path(__file__).parents[3] / "docs" / "tool_formats.md").read_text()
PYTHON = BlockTool(name="python", argument="code", example="print(1 + 1)", languages=("python", "py"))
SQL = BlockTool(name="query_table", argument="query", example="SELECT 1", languages=("sql",))
BLOCK, QUERY = "```python\nprint(1)\n```", "```sql\nSELECT 2\n```"


class Several(FencedBlocks):
    name = "several"
    tools = (PYTHON, SQL)


class One(FencedBlocks):
    name = "one"
    tools = (SQL, PYTHON)
    several_per_turn = False


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        (f"Add.\n{BLOCK}", [("python", {"code": "print(1)"})], "Add."),
        (f"{BLOCK}\n{QUERY}", [("python", {"code": "print(1)"}), ("query_table", {"query": "SELECT 2"})], ""),
        ("```py\nx = 1\n\nprint(x)\n```", [("python", {"code": "x = 1\n\nprint(x)"})], ""),
        ("  ```python \n  print(1)\n  ``` ", [("python", {"code": "  print(1)"})], ""),
        (f"<think>{BLOCK}</think>Hm.", [], f"<think>{BLOCK}</think>Hm."),
        (f"so {BLOCK}</think>{QUERY}"[3:], [], f"{BLOCK}</think>{QUERY}"),  # thinking that the prompt opened
        ("```\nprint(1)\n```", [], "```\nprint(1)\n```"),
        ("```pythonic\nprint(1)\n```", [], "```pythonic\nprint(1)\n```"),
        ("see ```python\nprint(1)\n```", [], "see ```python\nprint(1)\n```"),
        ("42", [], "42"),
    ],
)
def test_blocks_in_the_language_of_a_tool_are_its_calls(text: str, calls: object, content: str) -> None:
    parsed = Several().parse(text, truncated=False)
    assert [(call.name, dict(call.arguments)) for call in parsed.tool_calls] == calls
    assert (parsed.content, parsed.parse_error) == (content, None)


@pytest.mark.parametrize(
    ("text", "truncated", "error"),
    [
        ("```python\nprint(1)", False, "the block is not closed with ```"),
        ("```python\nprint(1)", True, "cut by the length limit"),
        (f"{BLOCK}\n```sql\n\n```", False, "Tool call 2 is malformed: there is nothing in the block"),
        ("```sql\n```", False, "Write a call as ```python\nprint(1 + 1)\n```"),
        (f"<think>{BLOCK}", False, "thinking was never closed"),
    ],
)
def test_a_broken_block_is_an_error_that_says_what_to_write(text: str, truncated: bool, error: str) -> None:
    parsed = Several().parse(text, truncated=truncated)
    assert error in str(parsed.parse_error)
    assert not parsed.tool_calls


@pytest.mark.parametrize(
    ("text", "turn", "first"),
    [
        (f"{BLOCK}\n```output\n1\n```\nSo 1.", BLOCK, BLOCK),
        (f"First\n{BLOCK}\n\n{QUERY}\nThen", f"First\n{BLOCK}\n\n{QUERY}", f"First\n{BLOCK}"),
        (f"{BLOCK}\n{QUERY}", None, BLOCK),
        (f"{BLOCK}\nmore\n{BLOCK}", BLOCK, BLOCK),
        (f"{BLOCK}\n```sql\nSELECT", None, BLOCK),
        (f"<think>{BLOCK}</think>\n{QUERY}", None, None),
        (f"<think>{BLOCK}", None, None),
        (f"{BLOCK}\n", None, None),
        ("```python\nprint(1)", None, None),
        ("No code.", None, None),
    ],
)
def test_a_turn_ends_with_its_blocks_or_with_its_first_one(text: str, turn: str | None, first: str | None) -> None:
    for tool_format, expected in ((Several(), turn), (One(), first)):
        end = tool_format.end_of_turn(text)
        assert (None if end is None else text[:end]) == expected


@settings(deadline=None, max_examples=cases(30))
@given(
    codes=st.lists(st.text(alphabet="ab`\n =#'", max_size=12), min_size=1, max_size=3),
    content=st.sampled_from(["", "Hm."]),
)
def test_written_blocks_are_read_back(codes: list[str], content: str) -> None:
    codes = [f"x{code.replace('```', '')}y" for code in codes]
    tools = [PYTHON, SQL] * 2
    calls = tuple(
        ToolCall(name=tool.name, arguments={tool.argument: code}, call_id=f"call{number:05d}")
        for number, (tool, code) in enumerate(zip(tools, codes, strict=False))
    )
    text = Several().call_text(calls, content)
    assert Several().parse(text, truncated=False) == ParsedText(content=content, tool_calls=calls, parse_error=None)
    assert Several().end_of_turn(text) is None


def test_other_tools_and_programs_that_no_block_holds_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"several writes calls of python\(code\), query_table\(query\), found price"):
        Several().call_text([ToolCall(name="price", arguments={})], "")
    with pytest.raises(ConfigError, match=r"found python with \['code', 'x'\]"):
        Several().call_text([ToolCall(name="python", arguments={"code": "1", "x": 1})], "")
    with pytest.raises(ConfigError, match="cannot write a program with a line ```"):
        Several().call_text([ToolCall(name="python", arguments={"code": "'''\n```\n'''"})], "")
    with pytest.raises(ConfigError, match="the tool format several has the tools python, query_table; found price"):
        Several().schemas_text([{"type": "function", "function": {"name": "price"}}])


@pytest.mark.parametrize("tools", [(PYTHON, PYTHON), (BlockTool(name="x", argument="y", example="", languages=()),)])
def test_a_language_belongs_to_one_tool(tools: tuple[BlockTool, ...]) -> None:
    with pytest.raises(ConfigError, match="the tool format odd needs languages for each of its tools"):
        type("Odd", (FencedBlocks,), {"name": "odd", "tools": tools})


def test_the_instructions_show_only_tools_of_the_task_and_a_result_is_a_block() -> None:
    schema = {"type": "function", "function": {"name": "query_table"}}
    assert One().schemas_text([schema]) == (
        "To run a program, write it as a block and stop there:\n```sql\nSELECT 1\n```\n"
        "Its output comes in the next message."
    )
    assert One().result_text("python", "7") == "```output\n7\n```"
    tool_format: ToolFormat = One()
    assert writes_as_text(tool_format)
    assert One.call_openings == ("```sql", "```python", "```py")
    assert marks_of_own_turn(tool_format) == "<think> </think>"


def test_the_format_of_the_documentation_works() -> None:
    section = PAGE.partition("## Programs in fenced blocks")[2].partition("## Your own format")[0]
    [code] = re.findall(r"```python\n(.*?)```\n", section, re.DOTALL)
    own: dict[str, Any] = {}
    exec(code.replace('@tool_formats.register("sql_blocks")\n', ""), own)
    text = f"{QUERY}\n{QUERY}"
    assert text[: own["SqlBlocks"]().end_of_turn(text)] == QUERY
