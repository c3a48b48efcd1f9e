"""Tools for chat templates that know none, with a real tokenizer: schemas, calls and results are plain text."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from agent_r1.chat import ChatRenderer, Prompt
from agent_r1.types import Action, Message, Observation, ToolCall
from tests.unit.chat.test_chat import CALL_TEXT, CHATML, QUESTION, TOOL, after, decode, said
from tests.unit.chat.test_formats import FORMATS, INTERPRETER

PLAIN = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def plain_renderer(tokenizer: Any, tool_format: str = "hermes") -> ChatRenderer:
    other = copy.deepcopy(tokenizer)
    other.chat_template = PLAIN
    return ChatRenderer(other, tool_format)


def test_schemas_become_the_system_message(tokenizer: Any) -> None:
    renderer = plain_renderer(tokenizer)
    schemas = renderer.format.schemas_text([TOOL])
    alone = renderer.render(Observation(messages=(QUESTION,), tools=(TOOL,)))
    assert decode(renderer, alone.token_ids) == (
        f"<|system|>{schemas}<|end|><|user|>What do 3 apple cost?<|end|><|assistant|>"
    )
    system: Message = {"role": "system", "content": "Be short."}
    joined = renderer.render(Observation(messages=(system, QUESTION), tools=(TOOL,)))
    assert decode(renderer, joined.token_ids).startswith(f"<|system|>Be short.\n\n{schemas}<|end|><|user|>")


def test_without_tools_nothing_is_added(tokenizer: Any) -> None:
    renderer = plain_renderer(tokenizer)
    prompt = renderer.render(Observation(messages=(QUESTION,)))
    assert decode(renderer, prompt.token_ids) == "<|user|>What do 3 apple cost?<|end|><|assistant|>"


def test_calls_are_written_by_the_format_and_results_are_the_users(tokenizer: Any) -> None:
    renderer = plain_renderer(tokenizer)
    action = said(renderer, "Let me look." + CALL_TEXT)
    observation = after(Observation(messages=(QUESTION,), tools=(TOOL,)), action, "7", "8")
    text = decode(renderer, renderer.render(observation).token_ids)
    assert text.endswith(
        "<|assistant|>Let me look.\n<tool_call>\n"
        '{"name": "price", "arguments": {"item": "apple"}}\n</tool_call><|end|>'
        "<|user|><tool_response>\n7\n</tool_response>\n<tool_response>\n8\n</tool_response><|end|><|assistant|>"
    )


def test_arguments_that_are_a_string_of_json_are_read(tokenizer: Any) -> None:
    renderer = plain_renderer(tokenizer)
    call = {"type": "function", "function": {"name": "price", "arguments": '{"item": "apple"}'}}
    messages: tuple[Message, ...] = (QUESTION, {"role": "assistant", "content": None, "tool_calls": [call]})
    text = decode(renderer, renderer.render(Observation(messages=messages, tools=(TOOL,))).token_ids)
    assert '{"name": "price", "arguments": {"item": "apple"}}' in text


@pytest.mark.parametrize("name", FORMATS)
def test_three_turns_bridge_in_every_format(tokenizer: Any, name: str) -> None:
    renderer = plain_renderer(tokenizer, name)
    if name == "retool":
        tool, call = INTERPRETER, ToolCall(name="code_interpreter", arguments={"code": "print(7)"})
    else:
        tool, call = TOOL, ToolCall(name="price", arguments={"item": "apple"})
    prompt = renderer.render(Observation(messages=(QUESTION,), tools=(tool,)))
    turns: list[tuple[Prompt, Action]] = []
    for _ in range(3):
        action = said(renderer, renderer.format.call_text([call], "Hm."))
        assert [c.name for c in action.tool_calls] == [call.name]
        turns.append((prompt, action))
        prompt = renderer.next_prompt(prompt, action, after(prompt.observation, action, "7", "8"))
        assert prompt.bridged
    for earlier, action in turns:
        reach = len(earlier.token_ids) + len(action.token_ids)
        assert prompt.token_ids[:reach] == earlier.token_ids + action.token_ids
    assert decode(renderer, prompt.token_ids) == decode(renderer, renderer.render(prompt.observation).token_ids)


def test_demonstrated_call_is_written_by_the_format(tokenizer: Any) -> None:
    renderer = plain_renderer(tokenizer, "react")
    prompt = renderer.render(Observation(messages=(QUESTION,), tools=(TOOL,)))
    action = said(renderer, 'Action: price\nAction Input: {"item": "apple"}')
    assert renderer.encode_turn(prompt, action.as_message()) == action.token_ids


def test_template_that_knows_tools_is_left_alone(tokenizer: Any) -> None:
    other = copy.deepcopy(tokenizer)
    other.chat_template = {"default": PLAIN, "tool_use": CHATML}
    renderer = ChatRenderer(other)
    text = decode(renderer, renderer.render(Observation(messages=(QUESTION,), tools=(TOOL,))).token_ids)
    assert "You can call these tools" not in text
    assert '"price"' in text


def test_stop_tokens_of_a_format_count_when_the_vocabulary_has_them(tokenizer: Any) -> None:
    assert ChatRenderer(tokenizer, "harmony").stop_ids == (tokenizer.eos_token_id,)
    other = copy.deepcopy(tokenizer)
    other.add_special_tokens({"additional_special_tokens": ["<|call|>"]})
    renderer = ChatRenderer(other, "harmony")
    assert renderer.stop_ids == (tokenizer.eos_token_id, other.convert_tokens_to_ids("<|call|>"))
    text = '<|channel|>commentary to=functions.price<|message|>{"item": "apple"}'
    action = renderer.parse(renderer.encode_rendered(text + "<|call|>"), truncated=False)
    assert (action.text, action.tool_calls[0].name) == (text, "price")


def test_repairs_are_on_the_action(tokenizer: Any) -> None:
    action = said(ChatRenderer(tokenizer), '<tool_call>{"name": "price",}</tool_call>')
    assert action.repairs == ("call 1: trailing comma",)
