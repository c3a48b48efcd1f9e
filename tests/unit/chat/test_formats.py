"""Seven tool-call formats: what each reads, writes, mends, and says to the model."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent_r1.chat.formats import ParsedText, ReToolFormat, ToolFormat, tool_formats
from agent_r1.chat.formats.base import end_of_turn_of
from agent_r1.chat.formats.near_json import read_json, read_whole_json
from agent_r1.errors import ConfigError
from agent_r1.types import ToolCall
from tests.helpers.fuzzing import cases

FORMATS = ("harmony", "hermes", "llama3", "mistral", "qwen3_coder", "react", "retool")
CUT = "it was cut by the length limit"
TOOL = {
    "type": "function",
    "function": {
        "name": "price",
        "description": "The price of one item.",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}},
    },
}
INTERPRETER = {"type": "function", "function": {"name": "code_interpreter", "description": "Runs Python."}}


def format_of(name: str) -> ToolFormat:
    return tool_formats.get(name)()


def parse(name: str, text: str, *, truncated: bool = False) -> ParsedText:
    return format_of(name).parse(text, truncated=truncated)


def calls_of(parsed: ParsedText) -> list[tuple[str, dict[str, Any]]]:
    return [(call.name, dict(call.arguments)) for call in parsed.tool_calls]


def test_there_are_seven_formats() -> None:
    assert set(FORMATS) <= set(tool_formats.names())


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"retool"}))
def test_arguments_are_nested_to_a_bounded_depth(name: str) -> None:
    """Deeper ones could be parsed, but not pickled for a worker or written to a record."""
    for depth in (90, 300, 960, 100_000):
        deep = "[" * depth + "]" * depth
        text = format_of(name).call_text([ToolCall(name="price", arguments={"item": "X", "a": "Y"})], "")
        parsed = parse(name, text.replace('"Y"', deep).replace("\nY\n", f"\n{deep}\n"))
        if depth == 90:
            assert calls_of(parsed) == [("price", {"item": "X", "a": json.loads(deep)})]
        elif parsed.tool_calls:  # a parameter that is no JSON is text
            assert (name, calls_of(parsed)) == ("qwen3_coder", [("price", {"item": "X", "a": deep})])
        else:
            assert "nested" in str(parsed.parse_error)


# Several calls with text around them

PRICES = [("price", {"item": "apple"}), ("price", {"item": "pear"})]
PROGRAMS = [("code_interpreter", {"code": "print(1)"}), ("code_interpreter", {"code": "x = 2\nprint(x)"})]
SEVERAL = {
    "hermes": (
        'First <tool_call>{"name": "price", "arguments": {"item": "apple"}}</tool_call> then '
        '<tool_call>\n{"name": "price", "arguments": {"item": "pear"}}\n</tool_call> last',
        "First  then  last",
    ),
    "qwen3_coder": (
        "First\n<tool_call>\n<function=price>\n<parameter=item>\napple\n</parameter>\n</function>\n</tool_call>then"
        "<tool_call><function=price><parameter=item>pear</parameter></function></tool_call>\nlast",
        "First\nthen\nlast",
    ),
    "llama3": (
        'First {"name": "price", "parameters": {"item": "apple"}}; {"name": "price", "parameters": {"item": "pear"}} '
        "last",
        "First  last",
    ),
    "mistral": (
        'First[TOOL_CALLS][{"name": "price", "arguments": {"item": "apple"}}, '
        '{"name": "price", "arguments": {"item": "pear"}}] last',
        "First last",
    ),
    "harmony": (
        "<|channel|>commentary<|message|>First<|end|><|start|>assistant<|channel|>commentary to=functions.price "
        '<|constrain|>json<|message|>{"item": "apple"}<|call|><|start|>assistant to=functions.price<|channel|>'
        'commentary json<|message|>{"item": "pear"}',
        "First",
    ),
    "retool": (
        "First <code>\n```python\nprint(1)\n```\n</code> then <code>x = 2\nprint(x)</code> last",
        "First  then  last",
    ),
    "react": (
        'Thought: First\nAction: price\nAction Input: {"item": "apple"}\nThought: then\nAction: price\n'
        'Action Input: {"item": "pear"}',
        "Thought: First\nThought: then",
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_several_calls_and_the_text_around_them_are_found(name: str) -> None:
    text, content = SEVERAL[name]
    parsed = parse(name, text)
    assert (calls_of(parsed), parsed.content, parsed.parse_error, parsed.repairs) == (
        PROGRAMS if name == "retool" else PRICES,
        content,
        None,
        (),
    )
    assert [call.call_id for call in parsed.tool_calls] == ["call00000", "call00001"]


def test_llama_calls_may_follow_the_python_tag() -> None:
    parsed = parse("llama3", 'Hm. <|python_tag|>{"name": "price", "parameters": {}}')
    assert (calls_of(parsed), parsed.content) == ([("price", {})], "Hm.")


def test_llama_answer_that_is_json_without_parameters_is_no_call() -> None:
    parsed = parse("llama3", 'Here: {"name": "Ann", "age": 3}.')
    assert (parsed.tool_calls, parsed.content, parsed.parse_error) == ((), 'Here: {"name": "Ann", "age": 3}.', None)


def test_newer_mistral_calls_are_found() -> None:
    text = '[TOOL_CALLS]price[ARGS]{"item": "apple"}[TOOL_CALLS]price[CALL_ID]a1[ARGS]{"item": "pear"}'
    assert calls_of(parse("mistral", text)) == PRICES


def test_plain_react_input_is_the_argument_input() -> None:
    assert calls_of(parse("react", "Action: search\nAction Input: 3 + 4")) == [("search", {"input": "3 + 4"})]


@pytest.mark.parametrize(
    ("name", "text", "turn"),
    [
        (
            "react",
            "Action: price\nAction Input: x\nObservation: 7\nFinal Answer: 7",
            "Action: price\nAction Input: x\n",
        ),
        ("react", 'Action: price\n{"item": "x"}\nObservation: 7', 'Action: price\n{"item": "x"}\n'),
        ("react", "<think>\nObservation: 1</think>Action: a\nAction Input: x", None),
        (
            "react",
            "Action: a\nAction Input: x\nObservation: 1\nAction: a\nObservation: 2",
            "Action: a\nAction Input: x\n",
        ),
        ("react", "Action: a\nAction Input: x\nFinal Answer: 7", "Action: a\nAction Input: x\n"),
        (
            "react",
            "Action: a\nAction Input: x\nAction: b\nAction Input: y\nThought: So.",
            "Action: a\nAction Input: x\nAction: b\nAction Input: y\n",
        ),
        ("react", 'Action: a\n{"b": 1}\n{"result": 2}\nAction: c', 'Action: a\n{"b": 1}'),
        (
            "react",
            'Action: a\nAction Input: {"b": {"c": 1}}\n\nThe result is 2.',
            'Action: a\nAction Input: {"b": {"c": 1}}',
        ),
        ("react", 'Action: a\nAction Input: {"b": 1}}\n', None),
        ("react", "Action: a\nAction Input: x\ny", None),
        ("react", "Thought: Hm.\nFinal Answer: 7\nThought: So.", None),
        ("react", "Observation: 7", None),
        ("react", "Action: a\nAction Input: An Observation: 7", None),
        ("react", "Thought: Hm.\nObservation: 7", None),
        ("retool", "<code>print(1)</code>\n<interpreter>1</interpreter>", "<code>print(1)</code>\n"),
        ("retool", "<code>'<interpreter>'</code>", None),
        ("retool", "<think><code>1</code><interpreter></think>", None),
        ("retool", "<interpreter>1</interpreter>", None),
    ],
)
def test_turn_ends_where_a_model_writes_the_answer_to_its_own_call(name: str, text: str, turn: str | None) -> None:
    end_of_turn = end_of_turn_of(format_of(name))
    assert end_of_turn is not None
    assert text[: end_of_turn(text)] == (text if turn is None else turn)


def test_formats_whose_calls_end_with_a_token_leave_turns_alone() -> None:
    assert [name for name in FORMATS if end_of_turn_of(format_of(name)) is None] == [
        "harmony", "hermes", "llama3", "mistral", "qwen3_coder",
    ]  # fmt: skip


def test_react_input_without_its_label_is_mended() -> None:
    parsed = parse("react", 'Thought: Hm.\nAction: price\n{"item": "apple"}')
    assert (calls_of(parsed), parsed.repairs) == (PRICES[:1], ("call 1: Action Input: was missing",))
    cut = parse("react", 'Action: price\n{"item": "app', truncated=True)
    assert cut.parse_error == "Tool call 1 is malformed: it was cut by the length limit."


def test_react_and_harmony_answers_are_their_final_part() -> None:
    assert parse("react", "Thought: I know.\nFinal Answer: 21").content == "21"
    text = "<|channel|>analysis<|message|>3 * 7<|end|><|start|>assistant<|channel|>final<|message|>21"
    assert parse("harmony", text).content == "21"


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("apple", "apple"),
        ("7", "7"),
        ("true", "true"),
        ("null", None),
        ('"7"', "7"),
        ('{"a": [1]}', {"a": [1]}),
        ("[1, 2]", [1, 2]),
        ("{not json}", "{not json}"),
        ("  two\nlines  ", "  two\nlines  "),
        ("", ""),
    ],
)
def test_xml_values_are_text_unless_they_are_objects_lists_strings_or_null(written: str, value: Any) -> None:
    text = f"<tool_call><function=f><parameter=x>\n{written}\n</parameter></function></tool_call>"
    assert calls_of(parse("qwen3_coder", text)) == [("f", {"x": value})]


# Thinking


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "harmony"])
def test_calls_inside_thinking_are_no_calls(name: str) -> None:
    text, _ = SEVERAL[name]
    thought = f"<think>\n{text}\n</think>\n"
    alone = parse(name, thought + "21")
    assert (alone.tool_calls, alone.parse_error) == ((), None)
    assert alone.content == (thought + "21")
    assert len(parse(name, thought + text).tool_calls) == 2
    given_by_the_prompt = parse(name, f"{text}\n</think>\n" + text)
    assert len(given_by_the_prompt.tool_calls) == 2


def test_calls_on_the_analysis_channel_are_no_calls() -> None:
    text = '<|channel|>analysis to=functions.price<|message|>{"item": 1}<|end|><|channel|>final<|message|>21'
    parsed = parse("harmony", text)
    assert (parsed.tool_calls, parsed.content, parsed.parse_error) == ((), "21", None)


@pytest.mark.parametrize("name", FORMATS)
def test_thinking_that_was_cut_says_the_answer_was_cut(name: str) -> None:
    text = "<|channel|>analysis<|message|>so " if name == "harmony" else "<think>so " + SEVERAL[name][0]
    parsed = parse(name, text, truncated=True)
    assert parsed.parse_error == "The answer was cut by the length limit in the middle of thinking."
    assert parsed.tool_calls == ()


@pytest.mark.parametrize("name", FORMATS)
def test_thinking_that_was_never_closed_is_told(name: str) -> None:
    text = "<|channel|>analysis<|message|>so " if name == "harmony" else "<think>so " + SEVERAL[name][0]
    told = "There is only thinking" if name == "harmony" else "The thinking was never closed"
    assert (parse(name, text).parse_error or "").startswith(told)


def test_mistral_thinking_marks_count_too() -> None:
    assert parse("mistral", '[THINK][TOOL_CALLS][{"name": "a"}][/THINK]21').tool_calls == ()


# Cut by the length limit

CUT_CALLS = {
    "hermes": '<tool_call>{"name": "price", "argum',
    "qwen3_coder": "<tool_call>\n<function=price>\n<parameter=item>\nap",
    "llama3": '{"name": "price", "parameters": {"item": 1',
    "mistral": '[TOOL_CALLS][{"name": "price", "arguments": {"item"',
    "harmony": '<|channel|>commentary to=functions.price <|constrain|>json<|message|>{"item": 1',
    "retool": "<code>print(",
    "react": 'Action: price\nAction Input: {"item": 1',
}


@pytest.mark.parametrize("name", FORMATS)
def test_call_cut_by_length_is_told_as_cut(name: str) -> None:
    parsed = parse(name, CUT_CALLS[name], truncated=True)
    assert (parsed.parse_error, parsed.tool_calls) == (f"Tool call 1 is malformed: {CUT}.", ())


@pytest.mark.parametrize("name", FORMATS)
def test_answer_cut_by_length_is_told(name: str) -> None:
    assert parse(name, "The price of", truncated=True).parse_error == "The answer was cut by the length limit."


@pytest.mark.parametrize("name", FORMATS)
def test_whole_calls_before_the_cut_still_run(name: str) -> None:
    assert len(parse(name, SEVERAL[name][0], truncated=True).tool_calls) == 2


# Malformed, with the words the model reads

HERMES_FORM = 'Write a call as <tool_call>{"name": "NAME", "arguments": {"KEY": VALUE}}</tool_call>'
XML_FORM = (
    "Write a call as <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>"
)
LLAMA_FORM = 'Write a call as {"name": "NAME", "parameters": {"KEY": VALUE}}'
MISTRAL_FORM = 'Write a call as the tool-calls mark, then [{"name": "NAME", "arguments": {"KEY": VALUE}}]'
HARMONY_FORM = (
    'Write a call as a message on the commentary channel to=functions.NAME with the arguments as JSON: {"KEY": VALUE}'
)
RETOOL_FORM = "Write a call as <code>\n```python\nprint(1 + 1)\n```\n</code>"
REACT_FORM = 'Write a call as Action: NAME\nAction Input: {"KEY": VALUE}'
FIRST = "Tool call 1 is malformed: "


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        (
            "hermes",
            '<tool_call>{"name": a}</tool_call>',
            f"{FIRST}not valid JSON (Expecting value at character 9, found 'a'). {HERMES_FORM}",
        ),
        (
            "hermes",
            '<tool_call>{"name": "a", "args": {}}</tool_call>',
            f'{FIRST}"arguments" is missing, found "args" beside "name". {HERMES_FORM}',
        ),
        (
            "hermes",
            '<tool_call>{"name": "a", "arguments": [1]}</tool_call>',
            f'{FIRST}"arguments" must be an object, found a list. {HERMES_FORM}',
        ),
        (
            "hermes",
            '<tool_call>{"name": "a"} {"name": "b"}</tool_call>',
            f"{FIRST}not valid JSON (it is complete at character 13, then found '{{'). {HERMES_FORM}",
        ),
        ("qwen3_coder", "<tool_call>price</tool_call>", f"{FIRST}<function=NAME> must come first. {XML_FORM}"),
        (
            "qwen3_coder",
            "<tool_call><function=f><parameter=x>1</function></tool_call>",
            f"{FIRST}</parameter> is missing after <parameter=x>. {XML_FORM}",
        ),
        (
            "qwen3_coder",
            "<tool_call><function=f>x</function></tool_call>",
            f"{FIRST}expected <parameter=KEY> or </function>, found 'x'. {XML_FORM}",
        ),
        (
            "qwen3_coder",
            "<tool_call><function=f>" + "<parameter=x>1</parameter>" * 2 + "</function></tool_call>",
            f"{FIRST}<parameter=x> is given twice. {XML_FORM}",
        ),
        (
            "llama3",
            '{"name": "price", "parameters": 3}',
            f'{FIRST}"parameters" must be an object, found a number. {LLAMA_FORM}',
        ),
        (
            "llama3",
            "<|python_tag|>print(1)",
            f"{FIRST}not valid JSON (Expecting value at character 0, found 'p'). {LLAMA_FORM}",
        ),
        ("mistral", "[TOOL_CALLS]", f"{FIRST}expected a list of calls or the name of a tool. {MISTRAL_FORM}"),
        ("mistral", "[TOOL_CALLS][]", f"{FIRST}the list of calls is empty. {MISTRAL_FORM}"),
        (
            "mistral",
            "[TOOL_CALLS]price[ARGS][1]",
            f"{FIRST}the arguments must be an object, found a list. {MISTRAL_FORM}",
        ),
        (
            "harmony",
            "<|channel|>commentary to=functions.price<|message|>apple<|call|>",
            f"{FIRST}not valid JSON (Expecting value at character 0, found 'a'). {HARMONY_FORM}",
        ),
        (
            "harmony",
            "<|channel|>commentary to=functions.price",
            f"{FIRST}its message is missing. {HARMONY_FORM}",
        ),
        ("retool", "<code>print(1)", f"{FIRST}</code> is missing. {RETOOL_FORM}"),
        ("retool", "<code>\n</code>", f"{FIRST}there is no code in it. {RETOOL_FORM}"),
        (
            "retool",
            "<code>print(1)</code><interpreter>1</interpreter>",
            "<interpreter> is written for you: stop after </code> and wait for the output. " + RETOOL_FORM,
        ),
        ("react", "Action: price", f"{FIRST}Action Input is missing after Action. {REACT_FORM}"),
        ("react", "Action Input: apple", f"{FIRST}Action Input without Action before it. {REACT_FORM}"),
        ("react", "Action:\nAction Input: x", f"{FIRST}Action must be the name of a tool, found nothing. {REACT_FORM}"),
        (
            "react",
            "Action: price\nAction Input: x\nObservation: 7",
            f"Observation is written for you: stop after Action Input and wait for it. {REACT_FORM}",
        ),
        (
            "react",
            "Action: price\nAction Input: x\nFinal Answer: 7",
            f"Found both Action and Final Answer: write one of them. {REACT_FORM}",
        ),
    ],
)
def test_malformed_call_is_told_exactly(name: str, text: str, told: str) -> None:
    parsed = parse(name, text)
    assert (parsed.parse_error, parsed.tool_calls, parsed.content) == (told, (), text)


def test_only_the_first_of_many_mistakes_are_told() -> None:
    error = parse("hermes", "<tool_call></tool_call>" * 1000).parse_error or ""
    assert "Tool call 3 is malformed" in error
    assert "Tool call 4" not in error
    assert "There are more mistakes" in error


@pytest.mark.parametrize("name", ["harmony", "llama3", "mistral"])
def test_control_tokens_are_never_told_to_the_model(name: str) -> None:
    marks = ("<|", "[TOOL_CALLS]", "[ARGS]")
    broken = ["<|python_tag|>x", "[TOOL_CALLS]<|call|>", "<|channel|>commentary to=functions.a<|message|><|channel|>"]
    errors = [parse(name, text).parse_error or "" for text in broken]
    assert any(errors)
    assert not [error for error in errors if any(mark in error for mark in marks)]


# Recovery


@pytest.mark.parametrize(
    ("body", "arguments", "repaired"),
    [
        ('{"name": "f", "arguments": {"x": 1,},}', {"x": 1}, "trailing comma"),
        ("{'name': 'f', 'arguments': {'x': 'it\\'s \"so\"'}}", {"x": 'it\'s "so"'}, "single quotes"),
        ('{"name": "f", "arguments": {"x": True}}', {"x": True}, "Python True"),
        ('{"name": "f", "arguments": {"x": None}}', {"x": None}, "Python None"),
        ('{"name": "f", "arguments": {"x": "a\nb"}}', {"x": "a\nb"}, "unescaped newline in a string"),
        ('{"name": "f", "arguments": {"x": "a\tb"}}', {"x": "a\tb"}, "unescaped control character"),
        ('{"name": "f", "arguments": {"x": 1}', {"x": 1}, "missing closing brace"),
        ('{"name": "f", "arguments": {"x": 1', {"x": 1}, "missing closing brace"),
        ('{"name": "f", "arguments": {"x": 1}}}', {"x": 1}, "extra closing brace"),
        ('```json\n{"name": "f", "arguments": {"x": 1}}\n```', {"x": 1}, "code fence around the JSON"),
        ('{"name": "f", "parameters": {"x": 1}}', {"x": 1}, '"parameters" instead of "arguments"'),
        ('{"name": "f", "arguments": "{\\"x\\": 1}"}', {"x": 1}, '"arguments" was a string of JSON'),
        ("```\n{'name': 'f', 'arguments': {},}\n```", {}, "code fence around the JSON, single quotes, trailing comma"),
    ],
)
def test_near_json_with_one_meaning_is_repaired_and_told(body: str, arguments: Any, repaired: str) -> None:
    parsed = parse("hermes", f"<tool_call>{body}</tool_call>")
    assert (calls_of(parsed), parsed.parse_error) == ([("f", arguments)], None)
    assert parsed.repairs == (f"call 1: {repaired}",)


@pytest.mark.parametrize(
    "body",
    [
        '{name: "f"}',
        '{"name": "f" "arguments": {}}',
        '{"name": "f", "arguments": {"x": "a "quoted" word"}}',
        '{"name": "f", "arguments": {"x": "\\d"}}',
        '{"name": "f", "arguments": {"x": [1, 2',
        '{"name": "f", "arguments": {"x": "breaks o',
        '{"name": "f", "arguments": {"x": ',
        '{"name": "f", "arguments": {,}}',
        '{"name": "f", "arguments": {"x": [1}]}',
        '{"name": "f", "arguments": {"x": undefined}}',
        '{"name": "f", "arguments": {"a": {"b": {"c": 1',
        "{'name': 'it's'}",
    ],
)
def test_near_json_that_needs_a_guess_is_not_mended(body: str) -> None:
    error = parse("hermes", f"<tool_call>{body}</tool_call>").parse_error
    assert error is not None
    assert "not valid JSON" in error


def test_one_entry_stands_for_each_mended_call() -> None:
    good = '<tool_call>{"name": "f"}</tool_call>'
    parsed = parse("hermes", good + '<tool_call>{"name": "f",}</tool_call>' + "<tool_call>{'name': 'f'}</tool_call>")
    assert parsed.repairs == ("call 2: trailing comma", "call 3: single quotes")


def test_tags_missing_around_an_xml_function_are_mended() -> None:
    parsed = parse("qwen3_coder", "<function=f></function>")
    assert (calls_of(parsed), parsed.repairs) == (
        [("f", {})],
        ("call 1: <tool_call> was missing, </tool_call> was missing",),
    )


# A chosen alphabet: the whole of Unicode takes hypothesis seconds to tabulate.
TEXTS = st.text(alphabet="ab01 \n\t\"'\\{}[]<>/:;,.-`é漢😀\x00\x7f\u2028", max_size=10)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=cases(150))
@given(value=JSON, pretty=st.booleans())
def test_valid_json_is_read_as_it_is(value: Any, pretty: bool) -> None:
    text = json.dumps(value, indent=2 if pretty else None)
    assert read_whole_json(text, 0, len(text)) == (value, len(text), ())


@settings(deadline=None, max_examples=cases(150))
@given(value=JSON)
def test_python_notation_means_what_python_reads(value: Any) -> None:
    read = read_json(str({"x": value}).replace("\\x", "\\u00"))
    assert read.value == {"x": value}


# Round trip

# fmt: off
MARKS = st.sampled_from([
    "<tool_call>", "</tool_call>", "<think>", "</think>", "</parameter>", "</function>", "<function=", "[TOOL_CALLS]",
    "<|call|>", "<|end|>", "<|message|>", "\nAction: x", "\nObservation:", "null", "7", '"q"', "[1]", "\n", "```",
])
# fmt: on
VALUES = TEXTS | st.lists(MARKS | TEXTS, max_size=3).map("".join)
NAMES = st.text(alphabet="abz_.-09", min_size=1, max_size=6)
TEXT_ARGUMENTS = st.dictionaries(NAMES, VALUES | st.none() | st.lists(JSON, max_size=2), max_size=3)
CONTENTS = st.text(alphabet="ab 漢.,\n", max_size=10).map(str.strip)


@pytest.mark.whole
@settings(deadline=None, max_examples=cases(100))
@given(data=st.data(), content=CONTENTS)
@pytest.mark.parametrize("name", [name for name in FORMATS if name != "retool"])
def test_written_calls_are_read_back(name: str, data: st.DataObject, content: str) -> None:
    arguments = TEXT_ARGUMENTS if name == "qwen3_coder" else st.dictionaries(VALUES, JSON | VALUES, max_size=3)
    drawn = data.draw(st.lists(st.tuples(NAMES, arguments), min_size=1, max_size=3))
    calls = tuple(ToolCall(name=n, arguments=a, call_id=f"call{i:05d}") for i, (n, a) in enumerate(drawn))
    text = format_of(name).call_text(calls, content)
    assert parse(name, text) == ParsedText(content=content, tool_calls=calls, parse_error=None)
    end_of_turn = end_of_turn_of(format_of(name))
    assert end_of_turn is None or end_of_turn(text) is None


@settings(deadline=None, max_examples=cases(100))
@given(codes=st.lists(VALUES, min_size=1, max_size=3), content=CONTENTS)
@example(codes=["```python\nx\n```"], content="")
@example(codes=['print("<code>")'], content="Hm.")
def test_written_code_is_read_back(codes: list[str], content: str) -> None:
    codes = [f"x{code.replace('</think>', '')}y" for code in codes]
    calls = tuple(
        ToolCall(name="code_interpreter", arguments={"code": c}, call_id=f"call{i:05d}") for i, c in enumerate(codes)
    )
    retool = ReToolFormat()
    text = retool.call_text(calls, content)
    assert retool.parse(text, truncated=False) == ParsedText(content=content, tool_calls=calls, parse_error=None)
    assert retool.end_of_turn(text) is None


def test_numbers_of_xml_parameters_come_back_as_their_text() -> None:
    call = ToolCall(name="f", arguments={"x": 7, "y": True})
    assert calls_of(parse("qwen3_coder", format_of("qwen3_coder").call_text([call], ""))) == [
        ("f", {"x": "7", "y": "true"})
    ]


def test_retool_writes_no_other_tool() -> None:
    with pytest.raises(ConfigError, match="found price with"):
        format_of("retool").call_text([ToolCall(name="price", arguments={})], "")
    with pytest.raises(ConfigError, match="knows one tool, code_interpreter"):
        format_of("retool").schemas_text([TOOL])


@pytest.mark.parametrize("name", FORMATS)
def test_schemas_and_results_say_what_they_hold(name: str) -> None:
    tool_format = format_of(name)
    schemas = tool_format.schemas_text([INTERPRETER if name == "retool" else TOOL])
    assert "Python" in schemas if name == "retool" else '"price"' in schemas
    assert "7 euro" in tool_format.result_text("price", "7 euro")
    assert "7 euro" in tool_format.result_text("", "7 euro")
    assert tool_format.parse(tool_format.call_text((), "21"), truncated=False).content == "21"


# Fuzz

# fmt: off
BITS = st.sampled_from([
    "<tool_call>", "</tool_call>", "<function=f>", "<function=", "</function>", "<parameter=x>", "</parameter>",
    "<think>", "</think>", "[THINK]", "[/THINK]", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "f[ARGS]{", "```json\n",
    "<|channel|>", "commentary to=functions.f", "analysis", "<|message|>", "<|call|>", "<|end|>", "<|start|>", "```",
    "<code>", "</code>", "<interpreter>", "Action: f\n", "\nAction Input:", "\nFinal Answer:", "\nObservation:",
    '{"name": "a"', ', "arguments": {', ', "parameters": {', "}", "]", "[", "NaN", '"\\ud800"', "1" * 4400, "None",
])
# fmt: on


def is_consistent(parsed: ParsedText, text: str) -> bool:
    told = parsed.parse_error is None or (not parsed.tool_calls and parsed.content == text and not parsed.repairs)
    return told and all(call.name and isinstance(call.arguments, dict) for call in parsed.tool_calls)


@pytest.mark.parametrize("name", FORMATS)
@settings(deadline=None, max_examples=cases(150))
@given(text=st.lists(BITS | TEXTS, max_size=14).map("".join), truncated=st.booleans())
def test_no_text_raises(name: str, text: str, truncated: bool) -> None:
    assert is_consistent(parse(name, text, truncated=truncated), text)


@pytest.mark.parametrize("name", FORMATS)
@settings(deadline=None, max_examples=cases(150))
@given(data=st.data())
def test_no_mutated_call_raises(name: str, data: st.DataObject) -> None:
    text = SEVERAL[name][0]
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(start + 8, len(text))))
        text = text[:start] + data.draw(BITS | TEXTS) + text[end:]
    assert is_consistent(parse(name, text, truncated=data.draw(st.booleans())), text)


# fmt: off
ENDLESS = [
    "<tool_call>", "<tool_call></tool_call>", "</tool_call>", '<tool_call>{"a": "', "<tool_call>[", "<think>",
    "</think>", "<think></think>", "<function=", "<function=a>", "<function=a><parameter=b>", "<parameter=b>",
    "<tool_call><function=a><parameter=b></tool_call>", "<function=a><parameter=b></tool_call>", '{"name":',
    '{"name": "a", ', '{"name": [', '{"name": "a"', '{"name": 1} ', "{ ", "<|python_tag|>", "[TOOL_CALLS]",
    '[TOOL_CALLS]["', "[TOOL_CALLS]a[ARGS]{", "[TOOL_CALLS]a[ARGS]{'", "[TOOL_CALLS][{'a':", "<|channel|>",
    "<|message|>", "<|channel|>commentary to=functions.a<|message|>{<|call|>", "<code>", "<code></code>",
    "<code>```\n</code>", "<interpreter>", "Action:", "Action:\n", "Action: a\nAction Input: [\n", "\n ",
    "Action Input:\n", "Observation:\n", "[", "{", "'", '"', "\\", "`", "```\n", " ", "a", "1", '{"a":', "[1,", ",",
]
OPENINGS = {
    "harmony": "<|channel|>commentary to=functions.a<|message|>", "hermes": "<tool_call>", "llama3": "<|python_tag|>",
    "mistral": "[TOOL_CALLS]a", "qwen3_coder": "<tool_call>", "react": "Action: a\nAction Input:", "retool": "<code>",
}
# fmt: on


def seconds_to_read(name: str, text: str) -> float:
    """Of the faster of two readings when the first is slow: collecting the garbage of earlier tests is not reading."""
    seconds = []
    while len(seconds) < 2 and min(seconds, default=1.0) >= 1.0:
        start = time.process_time()
        parse(name, text)
        seconds.append(time.process_time() - start)
    return min(seconds)


@pytest.mark.whole
@pytest.mark.parametrize("name", FORMATS)
def test_endless_repetition_is_read_in_linear_time(name: str) -> None:
    closing = "</parameter></function></tool_call></code>"
    texts = [
        text
        for bit in ENDLESS
        for text in (bit * (300_000 // len(bit)) + closing, OPENINGS[name] + bit * (300_000 // len(bit)))
    ]
    # A quadratic reader takes minutes.
    assert not [text[:60] for text in texts if seconds_to_read(name, text) > 1]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("text", ["<tool_call>" * 90_000, "<tool_call>" + "[" * 1_000_000, "[TOOL_CALLS]" * 80_000])
def test_a_million_characters_take_less_than_a_second(name: str, text: str) -> None:
    assert seconds_to_read(name, text) < 1


# The page about them

PAGE = (Path(__file__).parents[3] / "docs" / "tool_formats.md").read_text()


@pytest.mark.parametrize("name", FORMATS)
def test_examples_of_the_page_are_calls(name: str) -> None:
    [row] = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}`")]
    cell = re.split(r"(?<!\\)\|", row)[3].replace("\\|", "|")
    examples = re.findall(r"`([^`]+)`", cell)
    texts = ["\n".join(examples)] if name == "react" else examples
    for text in texts:
        [call] = parse(name, text).tool_calls
        assert (call.name, dict(call.arguments)) in (
            ("price", {"item": "apple"}),
            ("code_interpreter", {"code": "print(1 + 1)"}),
        )


def test_ones_own_format_of_the_page_works() -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE.partition("## Your own format")[2], re.DOTALL)
    # The name would stay in the registry for every later test.
    own: dict[str, Any] = {"__name__": "own_format"}
    exec(code.replace('@tool_formats.register("bang")\n', ""), own)
    bang = own["BangFormat"]()
    calls = (ToolCall(name="now", arguments={}, call_id="call00000"),)
    assert bang.parse(bang.call_text(calls, "Hm."), truncated=False) == ParsedText(
        content="Hm.", tool_calls=calls, parse_error=None
    )
