"""What a rollout records of its agent's calls: exact tokens, and which call continues which.

The agents here write requests themselves and go through the same reading of messages as those that come over HTTP.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_r1.chat import ChatRenderer
from agent_r1.engines import ScriptedEngine
from agent_r1.errors import EngineError, EpisodeError
from agent_r1.flows import FlowContext
from agent_r1.gateway.answers import ChatAnswer
from agent_r1.gateway.flow import GatewayFlow
from agent_r1.gateway.history import RecordedCall
from agent_r1.gateway.open_rollouts import OpenRollout, SamplingRequest
from agent_r1.openai_api import read_chat_request
from agent_r1.types import Completion, SamplingParams, Step, StopReason
from agent_r1.web import RefusedError
from tests.helpers.fuzzing import cases
from tests.helpers.gateway_agents import CALL, PRICE, TASK, babbling, encoded, replies_in_order

Agent = Callable[[OpenRollout], Awaitable[Any]]
USER = {"role": "user", "content": "What do 3 tea cost?"}


def run(
    engine: Any,
    renderer: ChatRenderer,
    agent: Agent,
    *,
    max_steps: int = 100,
    takes_outcome: bool = False,
    seed: int = 0,
) -> tuple[list[Step], OpenRollout]:
    """The steps that an agent's calls become."""

    async def go() -> tuple[list[Step], OpenRollout]:
        context = FlowContext(
            engine=engine, renderer=renderer, sampling=SamplingParams(max_tokens=40), max_steps=max_steps, seed=seed
        )
        flow = GatewayFlow(context)
        rollout = OpenRollout(flow, TASK, takes_outcome=takes_outcome)
        await agent(rollout)
        return flow.steps, rollout

    return asyncio.run(go())


async def ask(rollout: OpenRollout, messages: list[Any], **fields: Any) -> list[dict[str, Any]]:
    """The messages of the response's choices, as a client gets them: JSON and back."""
    body = json.loads(json.dumps({"model": "policy", "messages": messages, **fields}))
    answer = ChatAnswer(read_chat_request(body), "policy")
    await answer.sample(rollout)
    response = json.loads(json.dumps(answer.response()))
    return [choice["message"] for choice in response["choices"]]


def results(message: dict[str, Any], text: str = "4") -> list[dict[str, Any]]:
    """A tool's answer to each call of a message; a question when it has none."""
    calls = message.get("tool_calls") or []
    if not calls:
        return [{"role": "user", "content": f"And {text}?"}]
    return [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls]


class Recording:
    """Wraps an engine and keeps what it got and gave, call by call."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine
        self.sampled: list[tuple[tuple[int, ...], Completion]] = []
        self.context_length = engine.context_length

    async def generate(self, prompt_ids: Any, sampling: SamplingParams) -> Completion:
        completion = await self._engine.generate(prompt_ids, sampling)
        self.sampled.append((tuple(prompt_ids), completion))
        return completion


class RandomAgent:
    """Continues, rewrites, begins anew, branches and calls in parallel, as its random numbers say."""

    def __init__(self, seed: int, num_moves: int) -> None:
        self._rng = random.Random(seed)
        self._num_moves = num_moves
        self.conversations: list[list[dict[str, Any]]] = [[USER]]

    async def __call__(self, rollout: OpenRollout) -> None:
        for _ in range(self._num_moves):
            moves = [self._move(rollout) for _ in range(self._rng.choice([1, 1, 1, 3]))]
            await asyncio.gather(*moves)

    async def _move(self, rollout: OpenRollout) -> None:
        rng = self._rng
        messages = list(rng.choice(self.conversations))
        kind = rng.choice(["continue", "continue", "continue", "rewrite", "new", "system"])
        if kind == "new":
            messages = [{"role": "user", "content": f"Question {rng.random()}"}]
        elif kind == "rewrite" and len(messages) > 2:
            messages = [{"role": "user", "content": "So far: nothing."}, *messages[-1:]]
            messages = [message for message in messages if message["role"] != "tool"]
        elif kind == "system":
            messages = [{"role": "system", "content": "Be brief."}, *messages]
        fields = {"tools": [PRICE]} if rng.random() < 0.8 else {}
        for message in await ask(rollout, messages, n=rng.choice([1, 1, 2]), **fields):
            self.conversations.append([*messages, message, *results(message, str(rng.randint(0, 9)))])


@settings(max_examples=cases(60), deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 8))
def test_the_tokens_recorded_are_those_sampled_whatever_the_agent_does(
    renderer: ChatRenderer, tokenizer: Any, seed: int, num_moves: int
) -> None:
    """The engine samples ids that no tokenizer would write for their text, so any trip over text would be seen."""
    engine = Recording(babbling(tokenizer))
    steps, rollout = run(engine, renderer, RandomAgent(seed, num_moves), seed=seed)
    recorded = [(step.prompt_ids, step.action_ids, step.rollout_logprobs) for step in steps]
    sampled = [(prompt, completion.token_ids, completion.logprobs) for prompt, completion in engine.sampled]
    assert sorted(recorded) == sorted(sampled)
    for index, step in enumerate(steps):
        assert step.parent is not None
        assert -1 <= step.parent < index
        if step.parent >= 0:
            before = steps[step.parent]
            assert step.prompt_ids[: len(before.prompt_ids) + len(before.action_ids)] == (
                before.prompt_ids + before.action_ids
            )
    assert len(rollout.calls) == len(steps)


def test_a_conversation_that_is_sent_back_is_bridged_over_the_sampled_ids(
    renderer: ChatRenderer, tokenizer: Any
) -> None:
    """`4` and `2` as two ids: the text 42 alone does not say so, and the next prompt has them as sampled."""
    letters = [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "honey"]
    assert tokenizer.encode("honey", add_special_tokens=False) != letters
    engine = ScriptedEngine([[*letters, tokenizer.eos_token_id], *encoded(tokenizer, "12")])

    async def agent(rollout: OpenRollout) -> None:
        [answer] = await ask(rollout, [USER])
        assert answer["content"] == "honey"
        await ask(rollout, [USER, answer, {"role": "user", "content": "And now?"}])

    steps, _ = run(engine, renderer, agent)
    start = len(steps[0].prompt_ids)
    assert list(steps[1].prompt_ids[start : start + 5]) == letters
    assert [step.parent for step in steps] == [-1, 0]


def test_messages_are_recognised_however_a_client_writes_them(renderer: ChatRenderer, tokenizer: Any) -> None:
    engine = replies_in_order(tokenizer, f"Let me see.{CALL}", "12")
    rewritten: list[Any] = [
        lambda m: m,
        lambda m: {**m, "annotations": None, "audio": None, "function_call": None},
        lambda m: {**m, "content": [{"type": "text", "text": m["content"]}]},
        lambda m: {**m, "tool_calls": [{**c, "id": "mine"} for c in m["tool_calls"]]},
        lambda m: {
            **m,
            "tool_calls": [
                {
                    **c,
                    "function": {
                        **c["function"],
                        "arguments": json.dumps(json.loads(c["function"]["arguments"]), indent=1),
                    },
                }
                for c in m["tool_calls"]
            ],
        },
    ]

    async def agent(rollout: OpenRollout) -> None:
        [message] = await ask(rollout, [USER], tools=[PRICE])
        for rewrite in rewritten:
            sent = rewrite(message)
            await ask(rollout, [USER, sent, *results(sent)], tools=[PRICE])

    steps, _ = run(engine, renderer, agent)
    assert [step.parent for step in steps] == [-1, *[0] * len(rewritten)]
    assert len({step.prompt_ids for step in steps[1:]}) == 1


@pytest.mark.parametrize("change", ["content", "arguments", "dropped", "tools", "question"])
def test_a_history_that_says_something_else_begins_a_branch(
    renderer: ChatRenderer, tokenizer: Any, change: str
) -> None:
    engine = replies_in_order(tokenizer, f"Let me see.{CALL}", "12")

    async def agent(rollout: OpenRollout) -> None:
        [message] = await ask(rollout, [USER], tools=[PRICE])
        answers, question, tools = results(message), USER, [PRICE]
        if change == "content":
            message = {**message, "content": "Let me look."}
        elif change == "arguments":
            [call] = message["tool_calls"]
            message = {**message, "tool_calls": [{**call, "function": {**call["function"], "arguments": "{}"}}]}
        elif change == "dropped":
            message, answers = {"role": "assistant", "content": "Hm."}, [{"role": "user", "content": "4"}]
        elif change == "tools":
            tools = [{**PRICE, "function": {**PRICE["function"], "description": "Another."}}]
        else:
            question = {"role": "user", "content": "What do 4 tea cost?"}
        await ask(rollout, [question, message, *answers], tools=tools)

    steps, _ = run(engine, renderer, agent)
    assert [step.parent for step in steps] == [-1, -1]


def test_parallel_completions_are_branches_of_one_prompt(renderer: ChatRenderer, tokenizer: Any) -> None:
    engine = babbling(tokenizer, call_share=0)

    async def agent(rollout: OpenRollout) -> None:
        first, second = await ask(rollout, [USER], n=2)
        assert first != second
        for message in (second, first):
            await ask(rollout, [USER, message, {"role": "user", "content": "Sure?"}])

    steps, _ = run(engine, renderer, agent)
    assert [step.parent for step in steps] == [-1, -1, 1, 0]
    assert steps[0].prompt_ids == steps[1].prompt_ids


def test_equal_completions_are_each_continued_once(renderer: ChatRenderer, tokenizer: Any) -> None:
    async def agent(rollout: OpenRollout) -> None:
        first, second = await ask(rollout, [USER], n=2)
        for message in (first, second):
            await ask(rollout, [USER, message, {"role": "user", "content": "Sure?"}])

    steps, _ = run(replies_in_order(tokenizer, "12"), renderer, agent)
    assert [step.parent for step in steps] == [-1, -1, 0, 1]


def test_calls_at_the_same_time_have_tokens_that_do_not_depend_on_their_order(
    renderer: ChatRenderer, tokenizer: Any
) -> None:
    questions = [[{"role": "user", "content": f"Question {number}"}] for number in range(4)]

    def asking(order: list[int]) -> Agent:
        async def agent(rollout: OpenRollout) -> None:
            await asyncio.gather(*(ask(rollout, questions[number]) for number in order))

        return agent

    forward, _ = run(babbling(tokenizer), renderer, asking([0, 1, 2, 3]))
    backward, _ = run(babbling(tokenizer), renderer, asking([3, 1, 0, 2]))
    assert {s.prompt_ids: s.action_ids for s in forward} == {s.prompt_ids: s.action_ids for s in backward}


def test_the_same_prompt_twice_is_sampled_twice(renderer: ChatRenderer, tokenizer: Any) -> None:
    async def agent(rollout: OpenRollout) -> None:
        await ask(rollout, [USER])
        await ask(rollout, [USER])

    steps, _ = run(babbling(tokenizer, call_share=0), renderer, agent)
    assert steps[0].action_ids != steps[1].action_ids


def test_without_tools_a_call_is_text_and_can_be_continued(renderer: ChatRenderer, tokenizer: Any) -> None:
    async def agent(rollout: OpenRollout) -> None:
        [message] = await ask(rollout, [USER])
        assert message["content"] == CALL
        assert "tool_calls" not in message
        await ask(rollout, [USER, message, {"role": "user", "content": "What?"}])

    steps, _ = run(replies_in_order(tokenizer, CALL), renderer, agent)
    assert [step.parent for step in steps] == [-1, 0]


def test_one_call_of_several_is_returned_where_the_client_wants_one(renderer: ChatRenderer, tokenizer: Any) -> None:
    async def agent(rollout: OpenRollout) -> None:
        [message] = await ask(rollout, [USER], tools=[PRICE], parallel_tool_calls=False)
        assert len(message["tool_calls"]) == 1
        await ask(rollout, [USER, message, *results(message)], tools=[PRICE], parallel_tool_calls=False)

    steps, _ = run(replies_in_order(tokenizer, CALL + CALL, "12"), renderer, agent)
    assert [step.parent for step in steps] == [-1, 0]
    assert steps[1].prompt_ids[: len(steps[0].prompt_ids + steps[0].action_ids)] == (
        steps[0].prompt_ids + steps[0].action_ids
    )


def test_a_stop_text_ends_the_step_where_it_was_sampled(renderer: ChatRenderer, tokenizer: Any) -> None:
    """The text is returned without it; the ids that wrote it were sampled and are trained."""
    engine = Recording(replies_in_order(tokenizer, "3 tea cost 12 and milk"))

    async def agent(rollout: OpenRollout) -> None:
        [message] = await ask(rollout, [USER], stop=["cost"])
        assert message["content"] == "3 tea "
        await ask(rollout, [USER, message, {"role": "user", "content": "Go on."}], stop=["cost"])

    steps, _ = run(engine, renderer, agent)
    assert tokenizer.decode(steps[0].action_ids) == "3 tea cost"
    assert steps[0].action_ids == engine.sampled[0][1].token_ids[: len(steps[0].action_ids)]
    assert len(steps[0].rollout_logprobs) == len(steps[0].action_ids)
    assert [step.parent for step in steps] == [-1, 0]


def test_a_raw_prompt_that_continues_a_completion_keeps_its_ids(renderer: ChatRenderer, tokenizer: Any) -> None:
    letters = [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "honey"]
    engine = ScriptedEngine([[*letters, tokenizer.eos_token_id], *encoded(tokenizer, "12"), *encoded(tokenizer, "7")])

    async def agent(rollout: OpenRollout) -> None:
        [call] = await rollout.complete("Sweet: ", SamplingRequest())
        await rollout.complete(f"Sweet: {call.turn.action.text} and", SamplingRequest())
        await rollout.complete((5, 6, 7), SamplingRequest())

    steps, _ = run(engine, renderer, agent)
    sweet, rest = renderer.encode("Sweet: "), renderer.encode(" and")
    assert steps[1].prompt_ids == (*sweet, *letters, *rest)
    assert steps[2].prompt_ids == (5, 6, 7)
    assert [step.parent for step in steps] == [-1, 0, -1]


def refused(awaitable: Awaitable[Any]) -> Any:
    async def go() -> str:
        with pytest.raises(RefusedError) as error:
            await awaitable
        return error.value.kind

    return go()


def test_a_prompt_that_does_not_fit_is_refused_and_remembered_as_the_limit(
    renderer: ChatRenderer, tokenizer: Any
) -> None:
    async def agent(rollout: OpenRollout) -> None:
        await ask(rollout, [USER])
        assert rollout.limit is None
        long = {"role": "user", "content": "tea " * 100}
        assert await refused(ask(rollout, [long])) == "context_length_exceeded"
        assert rollout.limit is StopReason.CONTEXT_FULL
        await ask(rollout, [USER])
        assert rollout.limit is None  # the agent shortened its history and continued

    run(replies_in_order(tokenizer, "12", context_length=80), renderer, agent)


def test_calls_beyond_max_steps_are_refused(renderer: ChatRenderer, tokenizer: Any) -> None:
    async def agent(rollout: OpenRollout) -> None:
        await ask(rollout, [USER])
        assert await refused(ask(rollout, [USER], n=3)) == "max_steps_reached"
        await ask(rollout, [USER], n=2)
        assert await refused(ask(rollout, [USER])) == "max_steps_reached"
        assert rollout.limit is StopReason.MAX_STEPS

    steps, _ = run(replies_in_order(tokenizer, "12"), renderer, agent, max_steps=3)
    assert len(steps) == 3


class Stuck:
    """An engine that never answers."""

    context_length = 4096

    async def generate(self, prompt_ids: Any, sampling: SamplingParams) -> Completion:
        await asyncio.Event().wait()
        raise AssertionError


def test_a_call_whose_client_leaves_is_no_step_and_frees_its_place(renderer: ChatRenderer) -> None:
    async def agent(rollout: OpenRollout) -> None:
        for _ in range(3):
            call = asyncio.ensure_future(ask(rollout, [USER]))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    steps, _ = run(Stuck(), renderer, agent, max_steps=1)
    assert steps == []


def test_calls_that_run_when_the_agent_ends_are_dropped(renderer: ChatRenderer) -> None:
    async def agent(rollout: OpenRollout) -> None:
        call = asyncio.ensure_future(refused(ask(rollout, [USER])))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        rollout.end_calls()
        assert await call == "rollout_ended"
        assert await refused(ask(rollout, [USER])) == "rollout_ended"

    steps, _ = run(Stuck(), renderer, agent)
    assert steps == []


def test_an_engine_that_fails_fails_the_rollout_not_the_agent(renderer: ChatRenderer) -> None:
    def broken(prompt: Any, sampling: SamplingParams) -> list[int]:
        raise EngineError("out of memory")

    async def agent(rollout: OpenRollout) -> None:
        assert await refused(ask(rollout, [USER])) == "engine_error"
        failure: EpisodeError = rollout.failure.result()
        assert failure.reason is StopReason.ENGINE_ERROR

    run(ScriptedEngine(broken), renderer, agent)


def test_rewards_are_taken_once_and_within_the_rollout(renderer: ChatRenderer, tokenizer: Any) -> None:
    async def agent(rollout: OpenRollout) -> None:
        await ask(rollout, [USER])
        rollout.post_reward(0.5, 0)
        rollout.post_reward(0.25, 0)  # the last word counts
        for reward, step, kind in [
            (float("nan"), None, "invalid_reward"),
            (1e12, None, "invalid_reward"),
            (1.0, 1, "unknown_step"),
            (1.0, -1, "unknown_step"),
        ]:
            with pytest.raises(RefusedError) as error:
                rollout.post_reward(reward, step)
            assert error.value.kind == kind
        rollout.post_reward(1.0, None)
        with pytest.raises(RefusedError, match="already"):
            rollout.post_reward(0.0, None)
        assert await rollout.posted_outcome(5.0) == 1.0
        assert rollout.rewards() == {0: 0.25}
        with pytest.raises(RefusedError, match="ended"):
            rollout.post_reward(1.0, 0)

    run(replies_in_order(tokenizer, "12"), renderer, agent, takes_outcome=True)


def test_an_outcome_is_refused_where_a_function_scores(renderer: ChatRenderer, tokenizer: Any) -> None:
    async def agent(rollout: OpenRollout) -> None:
        with pytest.raises(RefusedError, match=r"agent\.reward=posted"):
            rollout.post_reward(1.0, None)

    run(replies_in_order(tokenizer, "12"), renderer, agent)


def test_an_outcome_that_never_comes_is_a_failure(renderer: ChatRenderer, tokenizer: Any) -> None:
    async def agent(rollout: OpenRollout) -> None:
        with pytest.raises(EpisodeError, match=r"agent\.grace_seconds") as error:
            await rollout.posted_outcome(0.01)
        assert error.value.reason is StopReason.REWARD_ERROR

    run(replies_in_order(tokenizer, "12"), renderer, agent, takes_outcome=True)


def test_a_conversation_that_the_template_refuses_is_a_bad_request(renderer: ChatRenderer, tokenizer: Any) -> None:
    class Refusing(ChatRenderer):
        def _template(self, *args: Any, **kwargs: Any) -> str:
            from agent_r1.errors import ChatTemplateError

            raise ChatTemplateError("roles must alternate")

    async def agent(rollout: OpenRollout) -> None:
        assert await refused(ask(rollout, [USER])) == "invalid_messages"

    run(replies_in_order(tokenizer, "12"), Refusing(tokenizer), agent)


def test_recorded_calls_count_their_continuations(renderer: ChatRenderer, tokenizer: Any) -> None:
    async def agent(rollout: OpenRollout) -> None:
        [message] = await ask(rollout, [USER])
        for _ in range(2):
            await ask(rollout, [USER, message, {"role": "user", "content": "Sure?"}])

    _, rollout = run(replies_in_order(tokenizer, "12"), renderer, agent)
    calls: list[RecordedCall] = rollout.calls
    assert [call.num_continuations for call in calls] == [2, 0, 0]
