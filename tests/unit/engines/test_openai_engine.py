"""Engines behind a chat API: a real HTTP server on loopback, its answers, its streams, its refusals, its failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from agent_r1.engines.openai import OpenAIEngine, ServerSettings
from agent_r1.engines.openai.servers import _answer
from agent_r1.engines.openai.turns import Reply
from agent_r1.errors import EngineError, EngineRequestError
from agent_r1.flows import FlowEvent, TokensSampled
from agent_r1.inference import ChatSession, connect_agent
from agent_r1.tools import BaseTool
from agent_r1.types import Observation, SamplingParams, StopReason
from tests.helpers.chat_server import CUT, SILENCE, ChatServer, answer, chat_server, slowly
from tests.helpers.seeing import drawn, part, sent
from tests.helpers.shop import LOOK_UP

pytest.importorskip("httpx")

CALL_CHUNKS = [
    {"delta": {"role": "assistant", "content": "Let me"}},
    {"delta": {"content": " look."}},
    {"delta": {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "look_up", "arguments": '{"it'}}]}},
    {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": 'em": "apple"}'}}]}},
    {"delta": {}, "finish_reason": "tool_calls"},
]
ANSWER_CHUNKS = [{"delta": {"content": "It costs"}}, {"delta": {"content": " 7."}, "finish_reason": "stop"}]


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with chat_server() as running:
        yield running


MESSAGES = Observation(messages=({"role": "user", "content": "hi"},))


def ask(
    *urls: str,
    observation: Observation = MESSAGES,
    streamed: bool = False,
    times: int = 1,
    retries: int = 0,
    timeout: float = 5.0,
    concurrency: int = 64,
    **options: Any,
) -> Any:
    """Turns of one engine at the same time: the only one, or a list."""

    async def run() -> Any:
        settings = ServerSettings(retries=retries, timeout=timeout, concurrency=concurrency)
        engine = OpenAIEngine(urls, settings=settings, **options)
        on_text = (lambda text: None) if streamed else None
        try:
            turns = [engine.chat(observation, SamplingParams(seed=7), on_text) for _ in range(times)]
            results = await asyncio.gather(*turns)
        finally:
            await engine.close()
        return results[0] if times == 1 else results

    return asyncio.run(run())


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were asked for, which are over at once."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        if seconds > 0:
            pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr("agent_r1.engines.openai.servers.asyncio.sleep", note)
    return pauses


def test_an_agent_on_a_server_streams_its_text_and_runs_its_tools_here(server: ChatServer) -> None:
    BaseTool.registry.add("look_up", LOOK_UP, replaceable=True)
    server.replies = [[*CALL_CHUNKS, "[DONE]"], ANSWER_CHUNKS, ANSWER_CHUNKS]
    agent = connect_agent(server.url, "tiny", overrides=["env.tools=[look_up]"], key="secret")
    texts: list[str] = []

    def observe(event: FlowEvent) -> None:
        if isinstance(event, TokensSampled):
            texts.append(event.text)

    async def talk() -> ChatSession:
        async with agent.opened():
            session = ChatSession(agent)
            await session.say("an apple?", observer=observe)
            await session.say("thanks")
            return session

    session = asyncio.run(talk())
    assert texts == ["Let me", " look.", "It costs", " 7."]
    roles = [message["role"] for message in session.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    path, headers, second = server.requests[1]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer secret"
    assert second["messages"][1]["tool_calls"][0]["function"] == {"name": "look_up", "arguments": '{"item": "apple"}'}
    assert second["messages"][2]["tool_call_id"] == "c1"
    assert second["tools"][0]["function"]["name"] == "look_up"
    assert server.requests[2][2]["messages"][-2:] == [
        {"role": "assistant", "content": "It costs 7."},
        {"role": "user", "content": "thanks"},
    ]


def test_arguments_that_are_no_json_object_are_a_parse_error_that_the_model_reads(server: ChatServer) -> None:
    broken = {"delta": {"tool_calls": [{"index": 0, "function": {"name": "look_up", "arguments": "{apple"}}]}}
    server.replies = [[broken, {"delta": {}, "finish_reason": "tool_calls"}]]
    completion, action = ask(server.url, streamed=True)
    assert action.tool_calls == ()
    assert "arguments of look_up are not a JSON object" in action.parse_error
    assert completion.finish_reason == "stop"


def test_arguments_that_are_nested_too_deeply_are_a_parse_error(server: ChatServer) -> None:
    for depth in (500, 100_000):
        arguments = '{"item": ' + "[" * depth + "]" * depth + "}"
        deep = {"delta": {"tool_calls": [{"index": 0, "function": {"name": "look_up", "arguments": arguments}}]}}
        server.replies = [[deep, {"delta": {}, "finish_reason": "tool_calls"}]]
        _, action = ask(server.url, streamed=True)
        assert action.tool_calls == ()
        assert "are not a JSON object of at most 100 levels" in action.parse_error


def test_calls_have_ids_of_their_own_where_each_turn_numbers_its_calls_anew(server: ChatServer) -> None:
    def turn(call_id: str) -> list[dict[str, Any]]:
        call = {"id": call_id, "type": "function", "function": {"name": "look_up", "arguments": {}}}
        return [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call_id, "content": "7"},
        ]

    server.replies = [answer("14")]
    messages = [{"role": "user", "content": "Twice?"}, *turn("call00000"), *turn("call00000"), *turn("own")]
    ask(server.url, observation=Observation(messages=tuple(messages)))
    sent = server.bodies[0]["messages"]
    assert [call["id"] for message in sent for call in message.get("tool_calls", ())] == [
        "call00000",
        "c00030000",
        "own",
    ]
    assert [message["tool_call_id"] for message in sent if message["role"] == "tool"] == [
        "call00000",
        "c00030000",
        "own",
    ]


@pytest.mark.parametrize(
    "body",
    [
        "[" * 100_000,
        '{"choices": {"a": 1}}',
        '{"choices": [{"message": {"tool_calls": [{"index": Infinity}]}, "finish_reason": "stop"}]}',
    ],
)
def test_an_answer_of_another_form_is_one_error(body: str) -> None:
    with pytest.raises(EngineError, match=r"did not answer with a JSON object|unexpected form"):
        Reply().add(_answer("http://a/v1/chat/completions", 200, body, {}))


def test_the_content_of_an_answer_may_be_a_list_of_parts() -> None:
    reply = Reply()
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "It is "}, {"type": "text", "text": "42"}]
    reply.add({"choices": [{"message": {"content": parts}, "finish_reason": "stop"}]})
    assert reply.finish()[1].content == "It is 42"
    with pytest.raises(EngineError, match="unexpected form"):
        reply.add({"choices": [{"message": {"content": [7]}}]})


def test_an_error_in_an_answer_without_an_error_status_is_told() -> None:
    with pytest.raises(EngineError, match=r"answered with an error: .*overloaded"):
        Reply().add({"error": {"message": "overloaded"}})


def reply_to(*parts: Any, usage: Any = None) -> tuple[Any, Any]:
    """What the choices of a whole answer, or of the chunks of a stream, add up to."""
    reply = Reply()
    for choice in parts:
        reply.add({"choices": [choice], "usage": usage})
    return reply.finish()


@pytest.mark.parametrize("choice", [{"message": None}, {}])
def test_a_finished_answer_without_a_message_is_an_error_and_not_an_empty_answer(choice: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match=r"answer is finished \('stop'\) and has no message"):
        reply_to({**choice, "finish_reason": "stop"})
    assert reply_to({"message": {"content": None}, "finish_reason": "stop"})[1].text == ""
    assert reply_to({"delta": {"content": "4"}}, {"finish_reason": "stop"})[1].text == "4"


@pytest.mark.parametrize("content", [7, False, {"text": "42"}])
def test_content_that_is_neither_text_nor_parts_is_an_error(content: Any) -> None:
    with pytest.raises(EngineError, match="unexpected form"):
        reply_to({"message": {"content": content}, "finish_reason": "stop"})


def test_usage_that_is_no_count_is_left_out() -> None:
    usage = {"prompt_tokens": "9", "completion_tokens": "n/a", "prompt_tokens_details": [8]}
    for given, counts in ((usage, {"prompt_tokens": 9}), ({"prompt_tokens": -1}, None)):
        assert reply_to({"message": {"content": "4"}, "finish_reason": "stop"}, usage=given)[0].usage == counts


def call_of(arguments: Any, **more: Any) -> dict[str, Any]:
    return {"function": {"name": "look_up", "arguments": arguments}, **more}


@pytest.mark.parametrize("kind", ["message", "delta"])
def test_arguments_may_be_an_object(kind: str) -> None:
    def ask_with(arguments: Any) -> Any:
        return reply_to({kind: {"tool_calls": [call_of(arguments, id="c1")]}, "finish_reason": "tool_calls"})[1]

    (call,) = ask_with({"item": "tea"}).tool_calls
    assert (call.name, call.arguments, call.call_id) == ("look_up", {"item": "tea"}, "c1")
    assert "arguments of look_up are not a JSON object" in ask_with(["tea"]).parse_error


def test_calls_of_one_index_are_calls_of_their_own() -> None:
    calls = [call_of('{"item": "tea"}', id="a", index=0), call_of('{"item": "egg"}', id="b", index=0)]
    whole = reply_to({"message": {"tool_calls": calls}, "finish_reason": "tool_calls"})
    streamed = reply_to(*({"delta": {"tool_calls": [call]}} for call in calls), {"delta": {}, "finish_reason": "stop"})
    for _, action in (whole, streamed):
        assert [(call.call_id, call.arguments["item"]) for call in action.tool_calls] == [("a", "tea"), ("b", "egg")]


def test_calls_with_one_id_get_ids_of_their_own() -> None:
    calls = [call_of("{}", id="a"), call_of("{}", id="a", index=None)]
    _, action = reply_to({"message": {"tool_calls": calls}, "finish_reason": "tool_calls"})
    assert [call.call_id for call in action.tool_calls] == ["a", "call1"]


def test_an_id_and_a_name_that_are_repeated_in_each_chunk_are_one() -> None:
    chunks = [{"delta": {"tool_calls": [call_of(part, id="c1", index=0)]}} for part in ('{"item"', ': "tea"}')]
    (call,) = reply_to(*chunks, {"delta": {}, "finish_reason": "tool_calls"})[1].tool_calls
    assert (call.name, call.arguments, call.call_id) == ("look_up", {"item": "tea"}, "c1")


def test_halves_of_a_surrogate_pair_are_joined_and_one_alone_is_replaced(server: ChatServer) -> None:
    halves = [{"delta": {"content": text}} for text in ("a\ud83d", "\ude00b\ud83d")]
    _, action = reply_to(*halves, {"delta": {}, "finish_reason": "stop"})
    assert action.content == "a\U0001f600b\ufffd"
    _, action = reply_to({"message": {"tool_calls": [call_of("{\ud800")]}, "finish_reason": "stop"})
    server.replies = [answer("4")]
    said = {"role": "assistant", "content": f"{action.text} {action.parse_error}"}
    ask(server.url, observation=Observation(messages=(said, {"role": "user", "content": "hi"})))
    assert server.bodies[0]["messages"][0] == said


def test_a_turn_that_the_server_cuts_is_cut(server: ChatServer) -> None:
    server.replies = [[{"delta": {"content": "It co"}, "finish_reason": "length"}]]
    completion, action = ask(server.url, streamed=True)
    assert completion.finish_reason == "length"
    assert action.parse_error is not None


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (
            (401, '{"error": {"message": "wrong key"}}'),
            r"401: wrong key; give its key \(engine.servers.key_env=NAME",
        ),
        ((404, '{"error": "no model"}'), "404: no model; is the model's name right"),
        ((500, "<html>broken</html>"), "500: <html>broken"),
        (["not json"], "sent an event that is not a JSON object"),
        (['{"error": {"message": "out of memory"}}'], "reports an error: .*out of memory"),
        ([{"delta": {"content": "half"}}], "ended in the middle of a turn"),
        ([], "ended in the middle of a turn"),
    ],
)
def test_what_a_server_refuses_or_breaks_is_one_clear_error(server: ChatServer, reply: Any, reason: str) -> None:
    server.replies = [reply]
    with pytest.raises(EngineError, match=reason):
        ask(server.url, streamed=True)


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(EngineError, match=r"http://127\.0\.0\.1:9/v1 cannot be reached"):
        ask("http://127.0.0.1:9")
    with pytest.raises(EngineError, match="must begin with http"):
        ask("localhost:8000")


def test_a_failing_server_leaves_the_conversation_as_it_was(server: ChatServer) -> None:
    server.replies = [ANSWER_CHUNKS, (500, "busy")]
    agent = connect_agent(server.url, "tiny", overrides=["engine.servers.retries=0"])

    async def talk() -> tuple[ChatSession, Any]:
        async with agent.opened():
            session = ChatSession(agent)
            await session.say("hi")
            return session, await session.say("again")

    session, failed = asyncio.run(talk())
    assert failed.stop_reason is StopReason.ENGINE_ERROR
    assert "500: busy" in failed.error
    assert len(session.messages) == 2


# --- whole answers, retries, several servers ---


def test_a_whole_answer_has_its_calls_and_what_it_took(server: ChatServer) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8}}
    server.replies = [answer("Let me look.", [("look_up", '{"item": "apple"}')], usage=usage)]
    completion, action = ask(server.url)
    assert [(call.name, call.arguments, call.call_id) for call in action.tool_calls] == [
        ("look_up", {"item": "apple"}, "c0")
    ]
    assert action.content == "Let me look."
    assert completion.usage == {"prompt_tokens": 9, "completion_tokens": 4, "cached_prompt_tokens": 8, "requests": 1}
    [body] = server.bodies
    assert (body["model"], body["seed"], body["max_tokens"], body["temperature"]) == ("tiny", 7, 256, 1.0)
    assert "stream" not in body


_FAULTS = [(429, "slow down"), (500, "oops"), (503, "<html>"), (529, "overloaded"), SILENCE]
_WHOLE_FAULTS = [CUT, (200, "garbage"), (200, "[]")]


@pytest.mark.parametrize("fault", [*_FAULTS, *_WHOLE_FAULTS], ids=str)
def test_a_passing_failure_is_retried(server: ChatServer, no_pauses: list[float], fault: Any) -> None:
    server.replies = [fault, fault, answer("It costs 7.")]
    completion, action = ask(server.url, retries=2, timeout=0.1 if fault == SILENCE else 5.0)
    assert action.text == "It costs 7."
    assert completion.usage == {"requests": 3}
    assert 0.25 <= no_pauses[0] <= 0.5 <= no_pauses[1] <= 1.0


@pytest.mark.parametrize("fault", _FAULTS, ids=str)
def test_a_stream_that_does_not_begin_is_retried(server: ChatServer, no_pauses: list[float], fault: Any) -> None:
    server.replies = [fault, ANSWER_CHUNKS]
    _, action = ask(server.url, retries=1, timeout=0.1 if fault == SILENCE else 5.0, streamed=True)
    assert action.text == "It costs 7."


def test_the_pause_is_the_one_that_the_server_asks_for(server: ChatServer, no_pauses: list[float]) -> None:
    server.replies = [(429, "", {"Retry-After": "7"}), (429, "", {"Retry-After": "9999"}), answer("hi")]
    ask(server.url, retries=2)
    assert no_pauses[0] == 7
    assert max(no_pauses) == 60


def test_when_retries_are_used_up_the_last_failure_is_told(server: ChatServer, no_pauses: list[float]) -> None:
    server.replies = [(500, "first"), (503, "second")]
    with pytest.raises(EngineError, match=r"refused the request with 503: second \(tried 2 times\)"):
        ask(server.url, retries=1)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ((400, '{"error": {"message": "bad tools"}}'), "400: bad tools"),
        ((401, '{"error": {"message": "who?"}}'), "401: who"),
        ((429, '{"error": {"message": "no money left", "code": "insufficient_quota"}}'), "429: no money left"),
    ],
)
def test_what_can_never_be_served_is_not_retried(server: ChatServer, reply: Any, reason: str) -> None:
    server.replies = [reply]
    with pytest.raises(EngineRequestError, match=reason):
        ask(server.url, retries=5)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "broken",
    [{"choices": "none"}, {"choices": [{"message": "hi", "finish_reason": "stop"}]}, {"choices": [3]}, {"usage": 3}],
)
def test_an_answer_of_another_form_is_one_clear_error(server: ChatServer, broken: Any) -> None:
    server.replies = [broken]
    with pytest.raises(EngineError, match="the server's answer has an unexpected form"):
        ask(server.url)


# --- charsets and ends of lines --------------------------------------------------------------------------------------


def content_type(charset: str | None, kind: str = "application/json") -> dict[str, str]:
    return {"Content-Type": kind if charset is None else f"{kind}; charset={charset}"}


@pytest.mark.parametrize(
    ("encoding", "charset"),
    [("utf-16", None), ("utf-8-sig", None), ("utf-16-le", "utf-16le"), ("latin-1", "ISO-8859-1"), ("utf-16", "utf-16")],
)
def test_an_answer_is_decoded_as_the_server_declares(server: ChatServer, encoding: str, charset: str | None) -> None:
    whole = json.dumps(answer("Un café coûte 7."), ensure_ascii=False)
    chunk = json.dumps({"choices": [{"delta": {"content": "Un café"}, "finish_reason": "stop"}]}, ensure_ascii=False)
    server.replies = [
        (200, whole.encode(encoding), content_type(charset)),
        (200, f"data: {chunk}\n\ndata: [DONE]\n\n".encode(encoding), content_type(charset, "text/event-stream")),
        (404, '{"error": "clé"}'.encode(encoding), content_type(charset)),
    ]
    assert ask(server.url)[1].text == "Un café coûte 7."
    assert ask(server.url, streamed=True)[1].text == "Un café"
    with pytest.raises(EngineRequestError, match="404: clé"):
        ask(server.url)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_charset_that_is_unknown_is_one_clear_error_and_not_retried(server: ChatServer, streamed: bool) -> None:
    server.replies = [(200, json.dumps(answer("hi")), content_type("klingon"))]
    with pytest.raises(EngineError, match=r"http://127.*/v1/chat/completions: .* the charset 'klingon', .*; have the"):
        ask(server.url, retries=3, streamed=streamed)
    assert len(server.requests) == 1


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_that_is_not_in_its_charset_is_a_passing_failure(
    server: ChatServer, no_pauses: list[float], streamed: bool
) -> None:
    server.replies = [(200, b'data: {"a": "caf\xe9"}\n\n')] * 2
    with pytest.raises(EngineError, match=r"http://127.*/completions: .* not in utf-8.*; have .*\(tried 2 times"):
        ask(server.url, retries=1, streamed=streamed)


def test_an_error_page_in_another_charset_keeps_its_status(server: ChatServer, no_pauses: list[float]) -> None:
    server.replies = [(502, b"caf\xe9"), (503, b"caf\xe9", content_type("klingon")), answer("hi")]
    assert ask(server.url, retries=2)[0].usage == {"requests": 3}


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"], ids=repr)
def test_events_are_read_whatever_ends_their_lines(server: ChatServer, end: str) -> None:
    events = [*(json.dumps({"choices": [entry]}) for entry in ANSWER_CHUNKS), "[DONE]"]
    text = "".join(f": a comment{end}data: {event}{end}{end}" for event in events)
    server.replies = [(200, text, content_type(None, "text/event-stream"))]
    assert ask(server.url, streamed=True)[1].text == "It costs 7."


@pytest.mark.whole
def test_open_requests_are_bounded(server: ChatServer) -> None:
    server.reply = slowly(answer("hi"))
    ask(server.url, times=20, concurrency=3)
    assert server.most_open == 3
    assert len(server.requests) == 20


@pytest.mark.whole
def test_requests_go_to_all_servers_and_around_one_that_fails(server: ChatServer) -> None:
    with chat_server() as other:
        server.reply = slowly(answer("hi"))
        other.reply = slowly((500, "broken"))
        turns = ask(server.url, other.url, times=16, retries=5, concurrency=4)
        assert [action.text for _, action in turns] == ["hi"] * 16
        assert 1 <= len(other.requests) < 16
        other.reply = slowly(answer("hi"))
        server.requests.clear()
        ask(server.url, other.url, times=16, model="tiny")
        assert len(server.requests) == 8


def test_fields_are_renamed_left_out_and_added_as_a_server_needs_it(server: ChatServer) -> None:
    refusal = json.dumps({"error": {"message": "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens'."}})
    server.replies = [(400, refusal), answer("hi")]
    ask(server.url, omit=["seed", "temperature"], extra={"reasoning_effort": "low"})
    last = server.bodies[-1]
    assert last["max_completion_tokens"] == 256
    assert last["reasoning_effort"] == "low"
    assert not {"max_tokens", "seed", "temperature"} & last.keys()
    server.replies = [(400, '{"error": {"message": "unknown field: seed"}}')]
    with pytest.raises(EngineRequestError, match=r"unknown field: seed; .*: engine.arguments.omit=\[seed\]"):
        ask(server.url)


def test_what_answers_no_call_is_sent_as_the_users(server: ChatServer) -> None:
    messages = (
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "{"},
        {"role": "tool", "content": "Error: no JSON"},
    )
    server.replies = [answer("hi")]
    ask(server.url, observation=Observation(messages=messages))
    assert server.bodies[0]["messages"][-1] == {"role": "user", "content": "Error: no JSON"}
    with pytest.raises(EngineRequestError, match="raw text or token ids"):
        ask(server.url, observation=Observation(text="hi"))


def test_images_are_sent_as_data_urls_and_those_of_tools_after_their_answers(server: ChatServer) -> None:
    server.replies = [answer("a dot")]
    call = {"id": "c1", "type": "function", "function": {"name": "zoom", "arguments": {}}}
    messages = (
        {"role": "user", "content": "What is in the corner?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "here"}, part(drawn(90))]},
    )
    ask(server.url, observation=Observation(messages=messages, images=(drawn(200).pil(),)))
    asked, _, told, shown = server.bodies[0]["messages"]
    assert (asked["content"], told["content"]) == ("What is in the corner?", [{"type": "text", "text": "here"}])
    assert shown == {"role": "user", "content": [sent(drawn(90)), sent(drawn(200))]}
