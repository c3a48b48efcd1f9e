"""The official client against the server: answers are the engine's own, whole and streamed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_r1.inference import connect_agent
from agent_r1.registry import recipe_folder
from agent_r1.types import SamplingParams
from tests.helpers.optional import needs
from tests.helpers.served_model import RECIPE, Served, scripted_agent, served

openai = needs("openai", reason="the client is in the extra 'dev'")

QUESTION = [{"role": "user", "content": "What do 3 apple cost?"}]
CALL = '<tool_call>\n{"name": "price", "arguments": {"item": "apple"}}\n</tool_call>'
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "price",
            "description": "What one costs.",
            "parameters": {"type": "object", "properties": {"item": {"type": "string"}}},
        },
    }
]


def client_of(running: Served, **options: Any) -> Any:
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0, **options)


@pytest.fixture(scope="module")
def client(tiny: Served) -> Iterator[Any]:
    with client_of(tiny) as client:
        yield client


@pytest.fixture(scope="module")
def caller(model_folder: Path) -> Iterator[Served]:
    """A model that looks prices up: twice in one turn, then answers."""

    def reply(prompt: str) -> str:
        return "It costs 12." if "tool_response" in prompt or "<|tool|>" in prompt else f"I look.\n{CALL}\n{CALL}"

    with served(scripted_agent(model_folder, reply)) as running:
        yield running


def test_chat_is_what_the_engine_samples(tiny: Served, client: Any) -> None:
    agent = tiny.server.agent
    answer = client.chat.completions.create(
        model="tiny",
        messages=QUESTION,
        max_tokens=20,
        seed=7,
        temperature=0.8,
        top_p=0.9,
        logprobs=True,
        extra_body={"return_token_ids": True, "top_k": 50},
    )
    [choice] = answer.choices
    params = SamplingParams(max_tokens=20, temperature=0.8, top_p=0.9, top_k=50, seed=7, stop=agent.renderer.stop_ids)
    expected = tiny.run(agent.engine.generate(tuple(answer.prompt_token_ids), params))
    assert tuple(choice.token_ids) == expected.token_ids
    assert tuple(entry.logprob for entry in choice.logprobs.content) == expected.logprobs
    assert choice.message.content == agent.renderer.text_of(expected.token_ids)
    assert choice.finish_reason == expected.finish_reason
    assert answer.usage.completion_tokens == len(expected.token_ids)
    assert answer.usage.prompt_tokens == len(answer.prompt_token_ids)


@pytest.mark.whole
def test_a_seed_repeats_an_answer_and_choices_differ(client: Any) -> None:
    def texts(**options: Any) -> list[str]:
        answer = client.chat.completions.create(model="tiny", messages=QUESTION, max_tokens=16, **options)
        return [choice.message.content for choice in answer.choices]

    first = texts(seed=3, n=3)
    assert texts(seed=3, n=3) == first
    assert texts(seed=3) == first[:1]
    assert len(set(first)) == 3
    assert texts() != texts(), "without a seed the server draws one"
    assert texts(temperature=0) == texts(temperature=0)


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_adds_up_to_the_whole_answer(client: Any, n: int) -> None:
    options = {"model": "tiny", "messages": QUESTION, "max_tokens": 24, "seed": 5, "n": n, "logprobs": True}
    exact = {"return_token_ids": True}
    whole = client.chat.completions.create(**options, extra_body=exact)
    texts, ids, logprobs, reasons = [""] * n, [[] for _ in range(n)], [[] for _ in range(n)], [None] * n
    usage = None
    stream = client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}, extra_body=exact
    )
    num_events = 0
    for event in stream:
        usage = event.usage or usage
        for choice in event.choices:
            num_events += 1
            texts[choice.index] += choice.delta.content or ""
            ids[choice.index] += getattr(choice, "token_ids", None) or []
            logprobs[choice.index] += [entry.logprob for entry in choice.logprobs.content] if choice.logprobs else []
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert num_events > 5 * n, "it is not one piece"
    assert texts == [choice.message.content for choice in whole.choices]
    assert ids == [choice.token_ids for choice in whole.choices]
    assert logprobs == [[entry.logprob for entry in choice.logprobs.content] for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert usage == whole.usage


@pytest.mark.whole
def test_a_stop_text_ends_an_answer(tiny: Served, client: Any) -> None:
    options = {"model": "tiny", "messages": QUESTION, "max_tokens": 60, "seed": 11}
    text = client.chat.completions.create(**options).choices[0].message.content
    stop = text[len(text) // 2 :][:2]
    before = tiny.engine.stats.generated_tokens
    [choice] = client.chat.completions.create(**options, stop=[stop, "\0\0"]).choices
    assert choice.message.content == text[: text.index(stop)]
    assert choice.finish_reason == "stop"
    assert tiny.engine.stats.generated_tokens - before < 60, "sampling ends at the stop text"


def test_parallel_calls_and_their_results_make_a_conversation(caller: Served) -> None:
    with client_of(caller) as client:
        first = client.chat.completions.create(model="tiny", messages=QUESTION, tools=TOOLS)
        [choice] = first.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "I look."
        one, two = choice.message.tool_calls
        assert json.loads(one.function.arguments) == {"item": "apple"}
        assert one.id != two.id
        results = [{"role": "tool", "tool_call_id": call.id, "content": "4"} for call in (one, two)]
        history = [*QUESTION, choice.message, *results]
        second = client.chat.completions.create(
            model="tiny", messages=history, tools=TOOLS, extra_body={"return_token_ids": True}
        )
        assert second.choices[0].message.content == "It costs 12."
        prompt, _ = caller.engine.requests[-1]
        assert tuple(second.prompt_token_ids) == prompt
        sampled = (*caller.server.agent.renderer.encode_rendered(f"I look.\n{CALL}\n{CALL}"),)
        assert any(prompt[i : i + len(sampled)] == sampled for i in range(len(prompt))), "the sampled ids are kept"


def test_streamed_calls_are_read_by_the_client(caller: Served) -> None:
    with (
        client_of(caller) as client,
        client.chat.completions.stream(model="tiny", messages=QUESTION, tools=TOOLS) as stream,
    ):
        final = stream.get_final_completion()
    [choice] = final.choices
    assert choice.finish_reason == "tool_calls"
    assert [call.function.name for call in choice.message.tool_calls] == ["price", "price"]
    assert choice.message.content == "I look."


def test_completions_take_ids_and_give_ids(tiny: Served, client: Any) -> None:
    prompts = [[5, 6, 7], [8, 9, 10, 11]]
    answer = client.completions.create(
        model="tiny",
        prompt=prompts,
        max_tokens=10,
        seed=2,
        n=2,
        logprobs=1,
        echo=False,
        extra_body={"return_token_ids": True},
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.prompt_token_ids for choice in answer.choices] == [prompts[0], prompts[0], prompts[1], prompts[1]]
    agent = tiny.server.agent
    params = SamplingParams(max_tokens=10, seed=2, stop=agent.renderer.stop_ids)
    for choice, prompt in zip(answer.choices[::2], prompts, strict=True):
        expected = tiny.run(agent.engine.generate(prompt, params))
        assert tuple(choice.token_ids) == expected.token_ids
        assert tuple(choice.logprobs.token_logprobs) == expected.logprobs
        assert choice.text == agent.renderer.text_of(expected.token_ids)
    streamed = client.completions.create(
        model="tiny", prompt=prompts[0], max_tokens=10, seed=2, stream=True, extra_body={"return_token_ids": True}
    )
    events = list(streamed)
    assert "".join(event.choices[0].text for event in events) == answer.choices[0].text
    ids = [token for event in events for token in getattr(event.choices[0], "token_ids", None) or []]
    assert ids == answer.choices[0].token_ids


def test_echo_gives_the_prompt_before_the_text(client: Any) -> None:
    plain = client.completions.create(model="tiny", prompt="What do", max_tokens=6, seed=1).choices[0].text
    assert (
        client.completions.create(model="tiny", prompt="What do", max_tokens=6, seed=1, echo=True).choices[0].text
        == f"What do{plain}"
    )


def test_models_are_listed(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="no such model"):
        client.models.retrieve("other")


def test_errors_are_the_clients_own(client: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="it serves 'tiny'"):
        client.chat.completions.create(model="gpt-4", messages=QUESTION)
    with pytest.raises(openai.BadRequestError, match="response_format is not supported") as caught:
        client.chat.completions.create(model="tiny", messages=QUESTION, response_format={"type": "json_object"})
    assert caught.value.param == "response_format"
    with pytest.raises(openai.BadRequestError, match=r"the prompt has \d+ tokens; at most 511 fit"):
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "word " * 2000}])
    with pytest.raises(openai.BadRequestError, match="the model knows 0 to"):
        client.completions.create(model="tiny", prompt=[10**6])


def test_an_agent_of_this_project_plays_on_the_server(caller: Served) -> None:
    with recipe_folder(RECIPE):
        agent = connect_agent(caller.url, "tiny", recipe=RECIPE, overrides=["rollout.max_tokens=60"])
    task = agent.question([{"role": "user", "content": "What do 3 apple cost?"}])

    async def play() -> Any:
        async with agent.opened():
            return await agent.play(task, scored=False)

    trajectory = asyncio.run(play())
    assert not trajectory.is_failure, trajectory.error
    assert [len(step.action.tool_calls) for step in trajectory.steps] == [2, 0]
    assert trajectory.steps[-1].action.text == "It costs 12."
