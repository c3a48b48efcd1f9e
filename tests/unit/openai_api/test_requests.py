"""Requests of the API: what is accepted, in which form, and what is refused with which reason."""

from __future__ import annotations

from typing import Any

import pytest

from agent_r1.openai_api import (
    OF_THE_RUN,
    ApiError,
    messages_from_openai,
    read_chat_request,
    read_completion_request,
)
from agent_r1.openai_api.fields import NEUTRAL
from agent_r1.types import Action, ToolCall

USER = {"role": "user", "content": "What costs an apple?"}
TOOL = {
    "type": "function",
    "function": {"name": "price", "description": "A price.", "parameters": {"type": "object"}, "strict": True},
}


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [USER], **fields}


def test_a_conversation_with_tools_becomes_the_messages_of_an_environment() -> None:
    calls = [
        {"id": "abc", "type": "function", "function": {"name": "price", "arguments": '{"item": "apple"}'}},
        {"id": "def", "type": "function", "function": {"name": "price", "arguments": "{}"}},
    ]
    messages = messages_from_openai(
        [
            {"role": "developer", "content": "Be short."},
            {**USER, "name": "Ada"},
            {"role": "assistant", "content": None, "tool_calls": calls, "refusal": None, "annotations": []},
            {"role": "tool", "tool_call_id": "def", "content": [{"type": "text", "text": "3"}]},
            {"role": "tool", "tool_call_id": "abc", "content": "2"},
        ]
    )
    action = Action(
        text="",
        tool_calls=(
            ToolCall(name="price", arguments={"item": "apple"}, call_id="call00000"),
            ToolCall(name="price", arguments={}, call_id="call00001"),
        ),
    )
    assert messages == (
        {"role": "system", "content": "Be short."},
        USER,
        action.as_message(),
        {"role": "tool", "name": "price", "tool_call_id": "call00001", "content": "3"},
        {"role": "tool", "name": "price", "tool_call_id": "call00000", "content": "2"},
    )


def test_a_reply_to_a_malformed_call_needs_no_id() -> None:
    reply = {"role": "tool", "content": "Error: the call is malformed"}
    assert messages_from_openai([USER, {"role": "assistant", "content": "<tool_call>"}, reply])[-1] == reply


def test_fields_become_sampling_parameters() -> None:
    request = read_chat_request(
        chat(max_completion_tokens=9, temperature=0, top_p=0.5, top_k=-1, seed=-3, stop="END", user="x", n=None)
    )
    params = request.sampling.params(max_tokens=9, stop_ids=(2,), seed=7)
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k, params.seed) == (9, 0.0, 0.5, 0, 7)
    assert request.sampling.seed == -3
    assert request.sampling.stop == ("END",)
    assert request.n == 1
    assert request.sampling.params(max_tokens=9, stop_ids=(), seed=7, index=1).seed != 7


def test_a_tool_choice_decides_which_tools_are_shown() -> None:
    other = {"type": "function", "function": {"name": "stock"}}
    named = {"type": "function", "function": {"name": "stock"}}
    shown = [
        [tool["function"]["name"] for tool in read_chat_request(chat(tools=[TOOL, other], **choice)).offered_tools]
        for choice in ({}, {"tool_choice": "none"}, {"tool_choice": "required"}, {"tool_choice": named})
    ]
    assert shown == [["price", "stock"], [], ["price", "stock"], ["stock"]]
    assert "strict" not in read_chat_request(chat(tools=[TOOL])).tools[0]["function"]


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": "hi"}, "messages", "valid list"),
        ({"messages": [{"content": "hi"}]}, "messages", "messages.0: role must be one of"),
        ({"messages": [{"role": "user"}]}, "messages", "messages.0: content is missing"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages", "content must be text"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]}, "messages", "no field 'tool_calls'"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "a"}]}, "messages", "belongs to no tool call"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages", "image"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
         "messages", "tool_calls.0: function.arguments is not JSON"),
        ({"model": 3}, "model", "valid string"),
        ({"model": None}, "model", "Field required"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"n": True}, "n", "valid integer"),
        ({"temperature": -1}, "temperature", "greater than or equal to 0"),
        ({"temperature": "hot"}, "temperature", "valid number"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": 10**30}, "max_tokens", "max_tokens"),
        ({"seed": 1.5}, "seed", "valid integer"),
        ({"stop": [""]}, "stop", "stop.0: String should have at least 1 character"),
        ({"stop": ["x"] * 17}, "stop", "stop: List should have at most 16 items after validation, not 17, found"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
        ({"logprobs": True, "top_logprobs": 5}, "top_logprobs", "sampled token only"),
        ({"top_logprobs": 1}, "top_logprobs", "needs logprobs"),
        ({"tools": [{"type": "web_search"}]}, "tools", "type 'function'"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools", "must match"),
        ({"tools": [TOOL, TOOL]}, "tools", "same name"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice", "must be auto, none, required"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not supported.*'type': 'text'"),
        ({"logit_bias": {"1": 2}}, "logit_bias", "not supported"),
        ({"frequency_penalty": 0.5}, "frequency_penalty", "not supported"),
        ({"audio": {}}, "audio", "not supported"),
        ({"teperature": 1}, "teperature", "unknown fields: teperature"),
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_field_is_refused_with_its_name_and_reason(fields: dict[str, Any], param: str, reason: str) -> None:
    with pytest.raises(ApiError, match=reason) as caught:
        read_chat_request(chat(**fields))
    assert (caught.value.status, caught.value.param) == (400, param)


def test_fields_that_change_nothing_are_accepted() -> None:
    neutral = {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "response_format": {"type": "text"}}
    harmless = {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "audio": None}
    assert read_chat_request(chat(**neutral, **harmless)) == read_chat_request(chat())


def test_fields_that_a_server_ignores_may_have_any_value() -> None:
    """The gateway: what decides how a policy is sampled is decided by its run."""
    agents_sdk = {"type": "json_schema", "json_schema": {"name": "final_output", "strict": True, "schema": {}}}
    values = {name: agents_sdk if name == "response_format" else 0.5 for name in OF_THE_RUN}
    assert read_chat_request(chat(**values), ignored=OF_THE_RUN) == read_chat_request(chat())
    text = {"model": "m", "prompt": "hi"}
    assert read_completion_request(text | values, ignored=OF_THE_RUN) == read_completion_request(text)
    assert set(OF_THE_RUN) <= NEUTRAL.keys()
    with pytest.raises(ApiError, match="unknown fields: guided_json"):
        read_chat_request(chat(guided_json={}), ignored=OF_THE_RUN)


def test_an_empty_turn_of_the_model_may_come_back_as_null() -> None:
    for empty in ({}, {"content": None}, {"content": None, "tool_calls": []}):
        answer = messages_from_openai([USER, {"role": "assistant", **empty}, USER])[1]
        assert answer == {"role": "assistant", "content": ""}


def test_what_litellm_adds_to_a_message_is_left_out() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "price", "arguments": '{"item": "tea"}'}}
    added = {
        "function_call": None,
        "provider_specific_fields": {"refusal": None},
        "thinking_blocks": [],
        "reasoning": "",
    }
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c1", "name": "price", "content": "4"}
    assert messages_from_openai([USER, answer | added, result]) == messages_from_openai([USER, answer, result])


def test_a_tool_without_parameters_has_an_empty_schema_of_them() -> None:
    [tool] = read_chat_request(chat(tools=[{"type": "function", "function": {"name": "now"}}])).tools
    assert tool["function"] == {"name": "now", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("hi", ("hi",)), ([5, 6], ((5, 6),)), (["a", "b"], ("a", "b")), ([[5], [6, 7]], ((5,), (6, 7)))],
    ids=str,
)
def test_prompts_are_texts_or_ids(prompt: Any, expected: Any) -> None:
    assert read_completion_request({"model": "m", "prompt": prompt}).prompts == expected


@pytest.mark.parametrize(
    "fields",
    [{"prompt": []}, {"prompt": [1, "a"]}, {"prompt": [-1]}, {"prompt": {}}, {},
     {"prompt": "x", "echo": True, "logprobs": 0}, {"prompt": "x", "logprobs": 5},
     {"prompt": "x", "suffix": "y"}, {"prompt": "x", "best_of": 2}],
    ids=str,
)  # fmt: skip
def test_a_wrong_completion_request_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        read_completion_request({"model": "m", **fields})
    assert caught.value.status == 400
    assert caught.value.body["error"]["type"] == "invalid_request_error"
