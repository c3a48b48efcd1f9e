"""Chat templates with demands of their own: a call before every tool's answer, ids of a form, thinking begun for the
model. Rendered after those of GPT-OSS, Mistral and Qwen3.5."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from agent_r1.chat import ChatRenderer
from agent_r1.errors import ChatTemplateError
from agent_r1.types import Message, Observation
from tests.unit.chat.test_chat import QUESTION, TOOL, after, decode, encode, said

# A tool's answer without a call before it, an id of another form, and marks in a message are refused.
STRICT = (
    "{% if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}"
    "{% set call = namespace(seen=false) %}"
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}"
    "{% if not call.seen %}{{ raise_exception('a tool answers no call') }}{% endif %}"
    "{% if message.tool_call_id is defined and message.tool_call_id | length != 9 %}"
    "{{ raise_exception('ids have nine characters') }}{% endif %}"
    "<tool>{{ message.content }}<|end|>"
    "{% elif message.tool_calls %}{% set call.seen = true %}<|assistant|>"
    "{% if message.content %}<analysis>{{ message.content }}<|end|><|assistant|>{% endif %}"
    "{% for made in message.tool_calls %}to={{ made.function.name }} {{ made.function.arguments | tojson }}"
    "{% endfor %}<|call|>"
    "{% elif message.role == 'assistant' %}{% set call.seen = false %}"
    "{% if '<|channel|>' in message.content %}{{ raise_exception('marks in a message') }}{% endif %}"
    "<|assistant|><|channel|>final<|message|>{{ message.content }}<|end|>"
    "{% else %}{% set call.seen = false %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

# A tool may answer only a call, and thinking is dropped from all earlier turns.
STRICT_AND_FORGETFUL = (
    "{% if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}{% set call = namespace(seen=false) %}"
    "{% for message in messages %}"
    "{% if message.role == 'tool' and not call.seen %}{{ raise_exception('a tool answers no call') }}{% endif %}"
    "{% set call.seen = message.role == 'tool' or message.tool_calls is defined %}"
    "<|{{ message.role }}|>{{ message.content.split('</think>')[-1].lstrip('\n') }}"
    "{% for made in message.tool_calls or [] %}<tool_call>{{ made.function | tojson }}</tool_call>{% endfor %}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

# The thinking is begun for the model, and kept.
BEGINS_THINKING = (
    "{% if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}"
    "{% for message in messages %}<|{{ message.role }}|>"
    "{% if message.role == 'assistant' %}"
    "{% set parts = message.content.split('</think>') %}"
    "<think>\n{{ parts[0].replace('<think>', '').strip('\n') if parts | length > 1 else '' }}\n</think>\n\n"
    "{{ parts[-1].lstrip('\n') }}"
    "{% else %}{{ message.content }}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)


def renderer_of(
    tokenizer: Any, template: str, tool_format: str = "hermes", *tokens: str, stop_ids: tuple[int, ...] = ()
) -> ChatRenderer:
    other = copy.deepcopy(tokenizer)
    other.chat_template = template
    other.add_special_tokens({"additional_special_tokens": list(tokens)})
    return ChatRenderer(other, tool_format, stop_ids)


HARMONY_CALL = '<|channel|>commentary to=functions.price <|constrain|>json<|message|>{"item": "apple"}'


def test_three_turns_bridge_where_a_tool_may_answer_only_a_call(tokenizer: Any) -> None:
    renderer = renderer_of(tokenizer, STRICT, "harmony", "<|call|>")
    end = encode(renderer, "<|call|>")
    observation = Observation(messages=(QUESTION,), tools=(TOOL,))
    prompt = renderer.render(observation)
    ids = prompt.token_ids
    for _ in range(3):
        action = renderer.parse((*encode(renderer, HARMONY_CALL), *end), truncated=False)
        assert [call.name for call in action.tool_calls] == ["price"]
        observation = after(observation, action, "7")
        prompt = renderer.next_prompt(prompt, action, observation)
        ids = (*ids, *action.token_ids, *encode(renderer, "<tool>7<|end|><|assistant|>"))
        assert prompt.bridged
        assert prompt.token_ids == ids


def test_a_stop_id_that_the_tokenizer_does_not_have_changes_no_prompt(tokenizer: Any) -> None:
    line_after_call = STRICT.replace("<|call|>", "<|call|>\n")
    prompts = []
    for stop_ids in ((), (10**7,)):
        renderer = renderer_of(tokenizer, line_after_call, "harmony", "<|call|>", stop_ids=stop_ids)
        observation = Observation(messages=(QUESTION,), tools=(TOOL,))
        action = renderer.parse(encode(renderer, HARMONY_CALL + "<|call|>"), truncated=False)
        prompts.append(renderer.next_prompt(renderer.render(observation), action, after(observation, action, "7")))
    assert prompts[1].bridged
    assert decode(renderer, prompts[1].token_ids) == decode(renderer, prompts[0].token_ids)


def test_a_call_that_was_cut_is_answered_by_the_user_where_a_tool_may_answer_only_a_call(tokenizer: Any) -> None:
    renderer = renderer_of(tokenizer, STRICT, "harmony", "<|call|>")
    observation = Observation(messages=(QUESTION,), tools=(TOOL,))
    prompt = renderer.render(observation)
    action = renderer.parse(encode(renderer, HARMONY_CALL[:-3]), truncated=True)
    assert action.parse_error is not None
    observation = after(observation, action, "Error: cut")
    prompt = renderer.next_prompt(prompt, action, observation)
    assert decode(renderer, prompt.token_ids).endswith(
        '<|channel|>final<|message|>commentary to=functions.price  json {"item": "appl<|end|>'
        "<|user|>Error: cut<|end|><|assistant|>"
    )


def test_an_answer_on_the_final_channel_is_bridged(tokenizer: Any) -> None:
    renderer = renderer_of(tokenizer, STRICT, "harmony", "<|call|>")
    observation = Observation(messages=(QUESTION,), tools=(TOOL,))
    prompt = renderer.render(observation)
    action = said(renderer, "<|channel|>final<|message|>21")
    assert (action.final_answer, action.as_message()["content"]) == ("21", "21")
    bridged = renderer.next_prompt(prompt, action, after(observation, action, "Sure?", role="user"))
    assert bridged.bridged
    told = encode(renderer, "<|user|>Sure?<|end|><|assistant|>")
    assert bridged.token_ids == (*prompt.token_ids, *action.token_ids, *told)


def test_the_ids_of_calls_are_nine_letters_and_digits(tokenizer: Any) -> None:
    renderer = renderer_of(tokenizer, STRICT)
    call = '<tool_call>{"name": "price", "arguments": {}}</tool_call>'
    found = [made.call_id for made in said(renderer, call * 3).tool_calls]
    assert len(set(found)) == 3
    assert all(re.fullmatch(r"[A-Za-z0-9]{9}", one) for one in found)


def test_thinking_that_the_template_begins_is_bridged(tokenizer: Any) -> None:
    renderer = renderer_of(tokenizer, BEGINS_THINKING)
    observation = Observation(messages=(QUESTION,), tools=(TOOL,))
    prompt = renderer.render(observation)
    action = said(renderer, 'So.\n</think>\n\n<tool_call>{"name": "price", "arguments": {"item": "apple"}}</tool_call>')
    bridged = renderer.next_prompt(prompt, action, after(observation, action, "7"))
    assert bridged.bridged
    expected = encode(renderer, "<|tool|>7<|end|><|assistant|><think>\n")
    assert bridged.token_ids == (*prompt.token_ids, *action.token_ids, *expected)


def test_thinking_that_a_template_drops_is_noticed_beside_calls_too(tokenizer: Any) -> None:
    renderer = renderer_of(tokenizer, STRICT_AND_FORGETFUL)
    observation = Observation(messages=(QUESTION,), tools=(TOOL,))
    prompt = renderer.render(observation)
    call = '<tool_call>{"name": "price", "arguments": {"item": "apple"}}</tool_call>'
    thoughtful, plain = said(renderer, f"<think>\nSo.\n</think>\n\n{call}"), said(renderer, call)
    assert renderer.next_prompt(prompt, plain, after(observation, plain, "7")).bridged
    fresh = renderer.next_prompt(prompt, thoughtful, after(observation, thoughtful, "7"))
    assert not fresh.bridged
    assert "So." not in decode(renderer, fresh.token_ids)


def test_thinking_that_was_never_closed_is_not_bridged_over(tokenizer: Any) -> None:
    """The template would close it, which nobody sampled."""
    renderer = renderer_of(tokenizer, BEGINS_THINKING)
    observation = Observation(messages=(QUESTION,), tools=(TOOL,))
    prompt = renderer.render(observation)
    action = said(renderer, "So")
    assert not renderer.next_prompt(prompt, action, after(observation, action, "7")).bridged


def test_a_conversation_that_a_template_refuses_is_one_clear_error(tokenizer: Any) -> None:
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system messages') }}{% endif %}tools"
    renderer = renderer_of(tokenizer, refusing)
    system: Message = {"role": "system", "content": "Be short."}
    with pytest.raises(ChatTemplateError, match="chat template refuses the conversation: no system messages"):
        renderer.render(Observation(messages=(system, QUESTION)))
