"""Arbitrary output of models, tools, sandboxes and MCP servers: text a model can read, never an exception or a hang."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_r1.chat.formats import tool_formats
from agent_r1.tools import ToolResponse, ToolRunner, tool
from agent_r1.tools.base import BaseTool, ToolContext, ToolResult
from agent_r1.tools.builtin.mcp.server import McpToolError, as_result
from agent_r1.tools.builtin.python import PythonTool
from agent_r1.tools.sandbox.session import SandboxSession
from agent_r1.types import Task, ToolCall
from tests.helpers.fuzzing import fuzz_settings

FORMATS = ("harmony", "hermes", "llama3", "mistral", "qwen3_coder", "react", "retool")
CONTEXT = ToolContext(task=Task(task_id="t", prompt=()))


class Silent:
    """An object whose texts cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


def circular() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def deep(depth: int) -> Any:
    """A list in a list in a list."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


ODDITIES: dict[str, Callable[[], Any]] = {
    "object": object,
    "silent": Silent,
    "circular": circular,
    "deep": lambda: deep(100_000),
    "long text": lambda: "a" * 50_000,
    "huge number": lambda: 10**5000,
    "date": lambda: date(2026, 1, 2),
    "decimal": lambda: Decimal("NaN"),
    "set": lambda: {1, 2},
    "bytes": lambda: b"\xff",
    "class": lambda: int,
    "function": lambda: print,
    "complex": lambda: 2j,
    "generator": lambda: (number for number in range(3)),
    "exception": lambda: ValueError("x"),
    "numpy": lambda: numpy.array([1.5, float("nan")]),
}


@dataclass(frozen=True)
class Hidden:
    """A value that need not be printable, for hypothesis to show."""

    value: Any

    def __repr__(self) -> str:
        try:
            return f"Hidden({self.value!r})"[:1000]
        except (RuntimeError, ValueError) as error:
            return f"Hidden({type(self.value).__name__}: {error})"


texts = st.text(max_size=30) | st.sampled_from(["", "\ud800", "\x00", "<|im_end|>", "\u202e"])
numbers = st.integers() | st.floats() | st.sampled_from([-(10**400), True, 1e308])
odd = st.sampled_from(sorted(ODDITIES)).map(lambda name: ODDITIES[name]())
leaves = st.none() | st.booleans() | numbers | texts | st.binary(max_size=20) | odd
keys = texts | st.integers() | st.none() | st.tuples(st.integers())
values = st.recursive(
    leaves | st.builds(deep, st.integers(0, 3000)),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
responses = st.builds(ToolResponse, text=texts | values, images=st.just(()) | values)
results = values | st.tuples(responses | values, values) | st.tuples(responses | values, values, values)


def readable(text: Any) -> None:
    """A model can read this: it is text that can be tokenised and saved."""
    assert isinstance(text, str)
    text.encode()


class Returning(BaseTool):
    """Answers with whatever it was given."""

    name = "f"

    def __init__(self, returned: Any) -> None:
        self._returned = returned
        self.tool_schema = {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}

    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        result: ToolResult = self._returned
        return result


def run(used: BaseTool, arguments: Mapping[str, Any] | None = None) -> None:
    """Call a tool as a rollout does."""

    async def call() -> None:
        outcome = await ToolRunner().call({"f": used}, ToolCall(name="f", arguments=arguments or {}), CONTEXT)
        readable(outcome.response.text)
        assert isinstance(outcome.reward, float)
        assert outcome.reward - outcome.reward == 0.0, "a reward is finite"
        assert isinstance(outcome.info, Mapping)

    asyncio.run(asyncio.wait_for(call(), 10))


@fuzz_settings(0.15)
@given(results.map(Hidden))
def test_tool_class_may_return_anything(returned: Hidden) -> None:
    run(Returning(returned.value))


HELD: list[Any] = [None]


@tool
def fuzzed_answer() -> Any:
    """Answers."""
    return HELD[0]


@tool
def fuzzed_order(item: str, count: int = 1, tags: list[str] | None = None) -> str:
    """Answers."""
    return f"{count} {item}"


@fuzz_settings(0.15)
@given(results.map(Hidden))
def test_tool_function_may_return_anything(returned: Hidden) -> None:
    HELD[0] = returned.value
    run(fuzzed_answer)


@fuzz_settings(0.1)
@given(st.dictionaries(st.sampled_from(["item", "count", "tags", "other", ""]), values, max_size=3).map(Hidden))
def test_tool_may_be_called_with_anything(arguments: Hidden) -> None:
    run(fuzzed_order, arguments.value)


# Tool calls in the text of a model

pieces = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "<think>", "</think>", "<function=f>", "</function>", "<parameter=x>",
        "</parameter>", "[TOOL_CALLS]", "[ARGS]", "[/TOOL_CALLS]", "<|python_tag|>", "<|eom_id|>", "<|channel|>",
        "<|message|>", "<|call|>", "<|start|>", "<|end|>", "commentary to=functions.f", "Action:", "Action Input:",
        "Observation:", "Final Answer:", "Thought:", "<code>", "</code>", "```python", "```", "<interpreter>",
        '{"name": "f", "arguments": {"x": 1}}', '{"name": "f", "arguments":', '{"name": 3}', '"arguments": "{}"',
        "{", "}", "[", "]", '"', "\\", ",", ":", "NaN", "-Infinity", "9" * 5000, "1e999", "\ud800", "\x00", "null",
    ]
)  # fmt: skip
written = st.lists(pieces | texts, max_size=12).map("".join)


@fuzz_settings(0.3)
@given(st.sampled_from(FORMATS), written, st.booleans())
def test_text_of_a_model_is_parsed_by_every_format(name: str, text: str, truncated: bool) -> None:
    parsed = tool_formats.get(name)().parse(text, truncated=truncated)
    assert isinstance(parsed.content, str)
    assert not (parsed.tool_calls and parsed.parse_error)
    for call in parsed.tool_calls:
        assert isinstance(call.name, str)
        assert isinstance(call.arguments, Mapping)


@fuzz_settings(0.05, deadline_ms=10_000)
@given(st.sampled_from(FORMATS), pieces, st.integers(1, 3000), st.booleans())
def test_repetition_is_parsed_in_bounded_time(name: str, piece: str, times: int, truncated: bool) -> None:
    tool_formats.get(name)().parse((piece * times)[:100_000], truncated=truncated)


# Reports of a sandbox


class Rendered:
    """A session whose program is a pair of pipes in our hands."""

    def __init__(self) -> None:
        self._their_requests, requests = os.pipe()
        reports, self.reports = os.pipe()
        output, self.output = os.pipe()
        for end in (requests, reports, output, self.reports):
            os.set_blocking(end, False)
        ended: Any = SimpleNamespace(poll=lambda: 0, kill=lambda: None)
        self.session = SandboxSession(guard=ended, requests=requests, reports=reports, output=output, folder=None)

    async def close(self) -> None:
        for end in (self._their_requests, self.reports, self.output):
            os.close(end)
        await self.session.close()


report_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
reports = st.dictionaries(st.sampled_from(["exit", "gone", "failed", "ready", "shown", "status"]), report_values)
lines = (
    reports.map(lambda report: json.dumps(report).encode())
    | st.binary(max_size=40)
    | st.builds(lambda piece, times: piece * times, st.sampled_from([b"[", b'{"a":', b"9", b'"']), st.integers(1, 5000))
    | st.sampled_from([b'{"shown": "\\ud800"}', b'{"exit": -40}', b'{"exit": 1e9}', b'{"shown": NaN}', b""])
)


@fuzz_settings(0.15)
@given(st.lists(lines, max_size=4), st.binary(max_size=40))
def test_anything_on_the_pipe_of_reports_is_an_answer_or_the_end(sent: list[bytes], printed: bytes) -> None:
    async def ask() -> None:
        written = Rendered()
        try:
            os.write(written.reports, b"\n".join([b'{"ready": 1}', *sent, b""])[:60_000])
            os.write(written.output, printed)
            reply = await written.session.ask({"code": "1"}, seconds=0.02)
        finally:
            await written.close()
        text, ended = TOOL._show(reply)
        assert isinstance(text, str)
        assert ended in ("ok", "error", "timeout", "died")

    asyncio.run(asyncio.wait_for(ask(), 10))


TOOL = PythonTool(sandbox="limits")


# Answers of MCP servers

blocks = st.builds(
    lambda **fields: SimpleNamespace(**fields),
    type=st.sampled_from(["text", "image", "audio", "resource", "resource_link", "new"]),
    text=texts,
    data=texts | st.sampled_from(["aGk=", "a", "!!"]),
    uri=texts | st.none(),
    resource=st.builds(SimpleNamespace, uri=texts, text=texts) | st.builds(SimpleNamespace, uri=texts),
)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
answers = st.builds(
    SimpleNamespace,
    content=st.lists(blocks, max_size=3),
    structured_content=st.none() | json_values | st.builds(deep, st.integers(0, 3000)),
    is_error=st.booleans(),
)


class Served(Returning):
    """What an MCP tool does with the answer of its server."""

    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        return as_result(self._returned)


@fuzz_settings(0.1)
@given(answers.map(Hidden))
def test_mcp_server_may_answer_anything(answer: Hidden) -> None:
    run(Served(answer.value))


def test_mcp_error_without_words_says_so() -> None:
    with pytest.raises(McpToolError, match="without saying why"):
        as_result(SimpleNamespace(content=[], structured_content=None, is_error=True))
