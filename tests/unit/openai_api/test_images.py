"""Images over the OpenAI API: data URLs in, pictures in messages, and data URLs out."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from agent_r1.chat import ChatRenderer
from agent_r1.engines import ScriptedEngine
from agent_r1.images import FIRST_IMAGE_ID, compact_ids, image_token_ids, openai_messages
from agent_r1.openai_api import (
    ApiError,
    ChatModel,
    chat_response,
    messages_from_openai,
    read_async,
    read_chat_request,
)
from agent_r1.openai_api.responses import ResponseHead
from tests.helpers.seeing import address_of, drawn, part, seeing_renderer, sent
from tests.helpers.shop import reply

DOT, OTHER = drawn(200), drawn(90)
TEXT = {"type": "text", "text": "What is this?"}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def test_a_data_url_becomes_a_picture_in_its_place() -> None:
    [message] = messages_from_openai([user({"type": "text", "text": "See: "}, sent(DOT), TEXT)])
    assert message == user({"type": "text", "text": "See: "}, part(DOT), TEXT)
    assert messages_from_openai([user(TEXT, TEXT)]) == ({"role": "user", "content": "What is this?" * 2},)


def test_a_tool_may_answer_with_an_image() -> None:
    call = {"id": "x", "type": "function", "function": {"name": "zoom", "arguments": "{}"}}
    answer = {"role": "tool", "tool_call_id": "x", "content": [sent(DOT)]}
    [_, _, read] = messages_from_openai([user(TEXT), {"role": "assistant", "tool_calls": [call]}, answer])
    assert (read["name"], read["content"]) == ("zoom", [part(DOT)])


def with_url(url: Any) -> dict[str, Any]:
    return user({"type": "image_url", "image_url": url})


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (with_url({"url": "http://x/y.png"}), "messages.0.content.0: image_url.url must be a data URL"),
        (with_url({"url": "file:///etc/passwd"}), "must be a data URL"),
        (with_url({"url": "scene.png"}), "must be a data URL"),
        (with_url({}), "must be a data URL"),
        (with_url({"url": 3}), "must be a data URL"),
        (with_url({"url": "data:image/svg+xml;base64,PHN2Zy8+"}), "messages.0.content.0: the image"),
        (with_url({"url": "data:text/html,<b>"}), "only data:image"),
        (with_url({"url": "data:image/png;base64,!!!"}), "base64"),
        (with_url({"url": address_of(DOT)[:-40]}), "the image"),
        ({"role": "system", "content": [sent(DOT)]}, "a part must be {'type': 'text', 'text': ...}, found"),
        ({"role": "assistant", "content": [sent(DOT)]}, "a part must be"),
        (user({"type": "image", "image": "x.png"}), "a part must be"),
        (user({"type": "input_audio", "input_audio": {}}), "this server reads text and images, found audio"),
        (user({"type": "video_url", "video_url": {}}), "found video"),
    ],
)
def test_what_is_no_image_is_refused_with_its_place(message: dict[str, Any], problem: str) -> None:
    with pytest.raises(ApiError) as refused:
        messages_from_openai([message])
    assert problem in refused.value.message
    assert (refused.value.status, refused.value.param) == (400, "messages")
    assert len(refused.value.message) < 500


def asked(*parts: Any, **more: Any) -> Any:
    return read_chat_request({"model": "m", "messages": [user(*parts)], **more})


def test_a_prompt_has_the_tokens_of_its_images_and_a_turn_is_continued_over_its_ids() -> None:
    renderer = seeing_renderer()
    model = ChatModel(ScriptedEngine([reply(renderer, "a dot")], context_length=4096), renderer, name="m")
    first = model.prompt(asked(sent(DOT), TEXT))
    assert [entry["tokens"] for entry in compact_ids(first.token_ids) if isinstance(entry, dict)] == [
        sum(token >= FIRST_IMAGE_ID for token in first.token_ids)
    ]
    request = asked(sent(DOT), TEXT, return_token_ids=True)
    choice = asyncio.run(model.choice(request, first, seed=0))
    head = ResponseHead(kind="chat.completion", model="m")
    response = json.loads(json.dumps(chat_response(head, request, first.token_ids, [choice], model.token_texts)))
    assert tuple(response["prompt_token_ids"]) == first.token_ids
    history = [user(sent(DOT), TEXT), {"role": "assistant", "content": "a dot"}, user(sent(OTHER))]
    following = model.prompt(read_chat_request({"model": "m", "messages": history}))
    sampled = first.token_ids + choice.completion.token_ids
    assert following.token_ids[: len(sampled)] == sampled
    changed = [user(sent(OTHER), TEXT), *history[1:]]
    other = model.prompt(read_chat_request({"model": "m", "messages": changed}))
    assert other.token_ids[: len(sampled)] != sampled


def test_a_model_that_sees_none_says_so(renderer: ChatRenderer) -> None:
    model = ChatModel(ScriptedEngine([], context_length=4096), renderer, name="m")
    with pytest.raises(ApiError, match="holds image content, which this model does not see") as refused:
        model.prompt(asked(sent(DOT)))
    assert refused.value.status == 400


def test_ids_of_images_are_no_prompt_of_plain_completions() -> None:
    from agent_r1.openai_api import read_completion_request

    with pytest.raises(ApiError, match="less than 2147483648"):
        read_completion_request({"model": "m", "prompt": list(image_token_ids("x", 2))})


def test_messages_for_other_servers_have_data_urls_and_tools_answer_with_text() -> None:
    calls = [{"id": name, "function": {"name": "zoom", "arguments": {}}} for name in "ab"]
    messages = (
        user(part(DOT), TEXT),
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "left"}, part(OTHER)]},
        {"role": "tool", "tool_call_id": "b", "content": [part(DOT)]},
        {"role": "user", "content": "And now?"},
    )
    written = openai_messages(messages)
    assert json.loads(json.dumps(written)) == written
    assert [message["role"] for message in written] == ["user", "assistant", "tool", "tool", "user", "user"]
    assert written[0]["content"] == [sent(DOT), TEXT]
    assert written[2]["content"] == [{"type": "text", "text": "left"}]
    assert written[3]["content"] == "The image follows."
    assert written[4]["content"] == [sent(OTHER), sent(DOT)]
    url = written[0]["content"][0]["image_url"]["url"]
    assert base64.b64decode(url.partition(",")[2]) == DOT.png()


def test_images_are_read_beside_the_event_loop() -> None:
    import threading

    threads: list[int] = []

    def read(body: Any) -> Any:
        threads.append(threading.get_ident())
        return read_chat_request(body)

    async def run() -> None:
        for parts in ([TEXT], [TEXT, sent(DOT)]):
            await read_async(read, {"model": "m", "messages": [user(*parts)]})
        with pytest.raises(ApiError, match="valid list"):
            await read_async(read, {"model": "m", "messages": 3})

    asyncio.run(run())
    assert [thread == threading.get_ident() for thread in threads] == [True, False, True]
