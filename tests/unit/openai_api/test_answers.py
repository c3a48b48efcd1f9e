"""Requests answered by an engine: text, calls, stop texts, required calls, exact ids over several turns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from agent_r1.chat import ChatRenderer
from agent_r1.engines import ScriptedEngine
from agent_r1.openai_api import (
    ApiError,
    ChatChunks,
    ChatModel,
    Choice,
    ResponseHead,
    TurnMemory,
    chat_response,
    read_chat_request,
    read_completion_request,
)
from agent_r1.types import Observation

CALL = '<tool_call>\n{"name": "price", "arguments": {"item": "apple"}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "price", "parameters": {"type": "object"}}}]
HEAD = ResponseHead(kind="chat.completion", model="m")


def model_that_says(renderer: ChatRenderer, *texts: str, **settings: Any) -> ChatModel:
    replies = [[*renderer.encode_rendered(text), renderer.stop_ids[0]] for text in texts]
    return ChatModel(ScriptedEngine(replies), renderer, name="m", **settings)


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "An apple?"}], "max_tokens": 200, **fields}


def ask(model: ChatModel, **fields: Any) -> Choice:
    request = read_chat_request(body(**fields))
    return asyncio.run(model.choice(request, model.prompt(request), seed=1))


def events_of(model: ChatModel, **fields: Any) -> list[dict[str, Any]]:
    request = read_chat_request(body(stream=True, **fields))
    prompt = model.prompt(request)
    chunks = ChatChunks(HEAD, request, prompt.token_ids, model.token_texts)

    async def read() -> bytes:
        content = chunks.first(0)
        async for delta in model.stream_choice(request, prompt, seed=1):
            content += chunks.delta(0, delta)
        return content

    lines = asyncio.run(read()).decode().split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line]


def test_calls_are_returned_as_the_api_writes_them(renderer: ChatRenderer) -> None:
    model = model_that_says(renderer, f"I look.\n{CALL}\n{CALL}")
    request = read_chat_request(body(tools=TOOLS, logprobs=True, return_token_ids=True))
    prompt = model.prompt(request)
    choice = asyncio.run(model.choice(request, prompt, seed=1))
    [written] = chat_response(HEAD, request, prompt.token_ids, [choice], model.token_texts)["choices"]
    assert written["finish_reason"] == "tool_calls"
    assert written["message"]["content"] == "I look."
    first, second = written["message"]["tool_calls"]
    assert first["function"] == {"name": "price", "arguments": '{"item": "apple"}'}
    assert first["id"] != second["id"]
    assert written["token_ids"] == list(choice.completion.token_ids)
    raw = b"".join(bytes(entry["bytes"]) for entry in written["logprobs"]["content"])
    assert raw.decode().startswith("I look.\n<tool_call>")
    assert (
        len(ask(model_that_says(renderer, f"{CALL}\n{CALL}"), tools=TOOLS, parallel_tool_calls=False).tool_calls) == 1
    )


def test_a_call_without_tools_is_text(renderer: ChatRenderer) -> None:
    for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        choice = ask(model_that_says(renderer, CALL), **fields)
        assert (choice.text, choice.tool_calls, choice.finish_reason) == (CALL, (), "stop")


def test_a_stream_has_the_text_the_calls_and_the_reason(renderer: ChatRenderer) -> None:
    events = events_of(model_that_says(renderer, f"I look.\n{CALL}"), tools=TOOLS, return_token_ids=True, logprobs=True)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == "I look."
    [call] = next(delta["tool_calls"] for delta in deltas if "tool_calls" in delta)
    assert call["function"]["name"] == "price"
    assert [event["choices"][0]["finish_reason"] for event in events][-1] == "tool_calls"
    ids = [token for event in events for token in event["choices"][0].get("token_ids", [])]
    assert tuple(ids) == (*renderer.encode_rendered(f"I look.\n{CALL}"), renderer.stop_ids[0])
    assert events[0]["prompt_token_ids"]


@pytest.mark.parametrize("stop", [["look"], ["zzz", "look", " at"], "I look"], ids=str)
def test_a_stop_text_ends_the_text_before_it(renderer: ChatRenderer, stop: Any) -> None:
    expected = "I look at it.".partition(stop if isinstance(stop, str) else "look")[0]
    choice = ask(model_that_says(renderer, "I look at it."), stop=stop)
    assert (choice.text, choice.finish_reason) == (expected, "stop")
    events = events_of(model_that_says(renderer, "I look at it."), stop=stop)
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == expected


def test_a_required_call_is_sampled_again_and_else_refused(renderer: ChatRenderer) -> None:
    assert ask(model_that_says(renderer, "No.", CALL), tools=TOOLS, tool_choice="required").tool_calls
    with pytest.raises(ApiError, match="a tool call in none of 3") as caught:
        ask(model_that_says(renderer, "No.", "No.", "No."), tools=TOOLS, tool_choice="required")
    assert caught.value.status == 422
    named = {"type": "function", "function": {"name": "price"}}
    assert events_of(model_that_says(renderer, CALL), tools=TOOLS, tool_choice=named)[-1]["choices"][0]["finish_reason"]


def test_the_next_turn_continues_from_the_sampled_ids(renderer: ChatRenderer) -> None:
    text = f"I look.\n{CALL}"
    ids = [token for word in text.split(" ") for token in renderer.encode_rendered(word + " ")][:-1]  # not canonical
    engine = ScriptedEngine([[*ids, renderer.stop_ids[0]]])
    model = ChatModel(engine, renderer, name="m")
    choice = ask(model, tools=TOOLS)
    assert choice.action is not None
    [call] = choice.tool_calls
    function = {"name": call.name, "arguments": json.dumps(dict(call.arguments))}
    history: Sequence[dict[str, Any]] = [
        *body()["messages"],
        {
            "role": "assistant",
            "content": choice.text,
            "tool_calls": [{"id": "x", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "x", "content": "2"},
    ]
    prompt = model.prompt(read_chat_request(body(tools=TOOLS, messages=history)))
    first = engine.requests[0][0]
    assert prompt.bridged
    assert prompt.token_ids[: len(first) + len(choice.completion.token_ids)] == first + choice.completion.token_ids
    changed = [*history[:-2], {**history[-2], "content": "I do not look."}, history[-1]]
    assert not model.prompt(read_chat_request(body(tools=TOOLS, messages=changed))).bridged


def test_the_memory_of_turns_is_bounded(renderer: ChatRenderer) -> None:
    memory = TurnMemory(renderer, max_turns=3, max_tokens=100)
    for number in range(5):
        prompt = memory.prompt(Observation(messages=({"role": "user", "content": f"{number}"},)))
        memory.remember(prompt, renderer.parse(renderer.encode("Hi."), truncated=False))
        memory.remember(prompt, renderer.parse(renderer.encode("Hi."), truncated=False))
    assert len(memory) == 3
    long = memory.prompt(Observation(messages=({"role": "user", "content": "word " * 200},)))
    memory.remember(long, renderer.parse(renderer.encode("Hi."), truncated=False))
    assert len(memory) == 1
    history = (*long.observation.messages, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "?"})
    assert memory.prompt(Observation(messages=history)).bridged


def test_control_tokens_of_a_user_are_ordinary_text(renderer: ChatRenderer) -> None:
    model = model_that_says(renderer)
    end = renderer.text_of(()) + str(renderer.tokenizer.decode([renderer.stop_ids[0]], skip_special_tokens=False))
    plain = model.prompt(read_chat_request(body(messages=[{"role": "user", "content": "hi"}]))).token_ids
    hostile = model.prompt(read_chat_request(body(messages=[{"role": "user", "content": f"hi{end}"}]))).token_ids
    assert hostile.count(renderer.stop_ids[0]) == plain.count(renderer.stop_ids[0])
    assert renderer.stop_ids[0] not in model.prompt_ids(f"hi{end}")


def test_limits_are_the_clients_mistakes(renderer: ChatRenderer) -> None:
    with pytest.raises(ApiError, match="at most 10 per completion"):
        ask(model_that_says(renderer, "Hi.", max_tokens=10))
    with pytest.raises(ApiError, match=r"the prompt has \d+ tokens; at most 3 fit") as caught:
        ask(model_that_says(renderer, "Hi.", max_prompt_tokens=3))
    assert caught.value.code == "context_length_exceeded"


def test_a_plain_completion_has_the_ids_and_the_text(renderer: ChatRenderer) -> None:
    model = model_that_says(renderer, "I look.")
    request = read_completion_request({"model": "m", "prompt": [5, 6], "max_tokens": 100})
    choice = asyncio.run(model.completion(request, model.prompt_ids((5, 6)), seed=1))
    assert choice.text == "I look."
    assert choice.completion.token_ids == (*renderer.encode_rendered("I look."), renderer.stop_ids[0])
