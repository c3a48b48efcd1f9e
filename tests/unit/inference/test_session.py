"""Conversations: exact ids from reply to reply, tools that keep their state, undo, stops, failures."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agent_r1.chat import ChatRenderer
from agent_r1.errors import ConfigError
from agent_r1.flows import ActionParsed, FlowEvent, PromptRendered, StepRecorded, TokensSampled
from agent_r1.inference import Agent, ChatSession
from agent_r1.inference.session import STOPPED
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.seeds import mix_seed
from agent_r1.types import Episode, SamplingParams, StopReason, Task
from tests.helpers.scripted_agents import CALL, COUNT, scripted_agent
from tests.helpers.shop import TASK, script


def chat(agent: Agent, talk: Callable[[ChatSession], Awaitable[Any]]) -> ChatSession:
    session = ChatSession(agent)

    async def run() -> None:
        async with agent.opened():
            await session.enter(TASK)
            await talk(session)
            await session.close()

    asyncio.run(run())
    return session


def prompts(agent: Agent) -> list[tuple[int, ...]]:
    engine: Any = agent.engine
    return [prompt for prompt, _ in engine.requests]


def test_every_prompt_of_a_conversation_continues_the_exact_ids_of_the_one_before(renderer: ChatRenderer) -> None:
    agent = scripted_agent(renderer, CALL, "it costs 7", f"again: {CALL}", "still 7")

    async def talk(session: ChatSession) -> None:
        await session.say("an apple?")
        await session.say("and now?")

    session = chat(agent, talk)
    steps = [step for exchange in session.exchanges for step in exchange.trajectory.steps]
    for before, after in itertools.pairwise(steps):
        sampled = before.prompt_ids + before.action_ids
        assert after.prompt_ids[: len(sampled)] == sampled
    assert [step.prompt_ids for step in steps] == prompts(agent)
    roles = [message["role"] for message in session.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant", "tool", "assistant"]


def test_tools_keep_their_state_from_reply_to_reply_and_lose_it_at_reset(renderer: ChatRenderer) -> None:
    agent = scripted_agent(renderer, COUNT, "one", COUNT, "two", COUNT, "one again")
    results = []

    async def talk(session: ChatSession) -> None:
        for said in ("first", "second"):
            await session.say(said)
            results.append(session.messages[-2]["content"])
        await session.reset()
        await session.say("third")
        results.append(session.messages[-2]["content"])

    chat(agent, talk)
    assert results == ["1", "2", "1"]


def test_undo_restores_the_conversation_to_the_token(renderer: ChatRenderer) -> None:
    agent = scripted_agent(renderer, "one", "two", "another two")

    async def talk(session: ChatSession) -> None:
        await session.say("first")
        before = session.messages
        await session.say("second")
        assert session.undo()
        assert session.messages == before
        await session.say("second")

    session = chat(agent, talk)
    _, second, again = prompts(agent)
    assert second == again
    assert session.messages[-1]["content"] == "another two"
    assert session.undo()
    assert session.undo()
    assert not session.undo()
    assert session.messages == ()


def test_a_windowed_context_still_sees_only_its_last_turns_after_the_users_next_message(renderer: ChatRenderer) -> None:
    window = "env.context={name: window, turns: 1}"
    agent = scripted_agent(renderer, CALL, "seven", "bye", overrides=[window])

    async def talk(session: ChatSession) -> None:
        await session.say("an apple?")
        await session.say("thanks")

    session = chat(agent, talk)
    last = session.exchanges[-1].trajectory.steps[-1].observation.messages
    assert [message["content"] for message in last] == ["an apple?", "seven", "thanks"]
    assert len(session.messages) == 6


def test_the_observer_sees_prompts_tokens_actions_and_steps_in_order(renderer: ChatRenderer) -> None:
    agent = scripted_agent(renderer, f"let me see {CALL}", "7")
    events: list[FlowEvent] = []
    chat(agent, lambda session: session.say("an apple?", observer=events.append))
    kinds = [type(event) for event in events if not isinstance(event, TokensSampled)]
    assert kinds == [PromptRendered, ActionParsed, StepRecorded] * 2
    taken = [event for event in events if isinstance(event, StepRecorded)]
    sampled = [event for event in events if isinstance(event, TokensSampled)]
    ids = tuple(token for event in sampled for token in event.token_ids)
    assert ids == taken[0].step.action_ids + taken[1].step.action_ids
    assert len(sampled) == len(ids), "one event per token"
    assert "".join(event.text for event in sampled) == f"let me see {CALL}7"
    assert [message["content"] for message in taken[0].replies] == ["7"]
    assert taken[0].step.reward == 0.25
    assert taken[1].replies == ()


def test_watching_an_episode_changes_nothing_in_it(renderer: ChatRenderer) -> None:
    sampling = SamplingParams(max_tokens=256)
    watched = scripted_agent(renderer, CALL, "it costs 7")
    seen: list[FlowEvent] = []
    trajectory = asyncio.run(watched.play(TASK, observer=seen.append, sampling=sampling, seed=mix_seed(5, 0)))
    engine = script(renderer, CALL, "it costs 7")
    plain = Rollout(
        engine=engine,
        renderer=renderer,
        reward=lambda task, episode: 0.0,
        make_env=watched.rollout.make_env,
        limits=RolloutLimits(retries=0),
    )
    [group] = asyncio.run(plain.run([TASK], group_size=1, sampling=sampling, seed=5))
    [same] = group.trajectories
    assert [(s.prompt_ids, s.action_ids, s.rollout_logprobs, s.reward) for s in trajectory.steps] == [
        (s.prompt_ids, s.action_ids, s.rollout_logprobs, s.reward) for s in same.steps
    ]
    assert len(seen) > 6


def test_a_reply_that_is_stopped_stays_as_far_as_it_was_seen(renderer: ChatRenderer) -> None:
    agent = scripted_agent(renderer, "one two three four five", "fine")
    text = ""

    async def talk(session: ChatSession) -> None:
        nonlocal text
        reached = asyncio.Event()

        def observe(event: FlowEvent) -> None:
            nonlocal text
            text += event.text if isinstance(event, TokensSampled) else ""
            if text.count(" ") == 2:
                reached.set()

        running = asyncio.create_task(session.say("count", observer=observe))
        await asyncio.wait_for(reached.wait(), 10)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await session.say("go on")

    session = chat(agent, talk)
    stopped, after = session.exchanges
    assert stopped.messages[-1] == {"role": "assistant", "content": text}
    assert "five" not in text
    assert stopped.trajectory.reward_parts == {"stopped": 1.0}
    [cut] = stopped.trajectory.steps
    sampled = cut.prompt_ids + cut.action_ids
    assert after.trajectory.steps[0].prompt_ids[: len(sampled)] == sampled
    assert after.messages[-1]["content"] == "fine"


def test_a_call_that_is_stopped_is_answered_for_the_model(renderer: ChatRenderer) -> None:
    agent = scripted_agent(renderer, CALL, "sorry")

    async def talk(session: ChatSession) -> None:
        running: asyncio.Task[Any]

        def observe(event: FlowEvent) -> None:
            if isinstance(event, ActionParsed):
                running.cancel()

        running = asyncio.create_task(session.say("an apple?", observer=observe))
        with pytest.raises(asyncio.CancelledError):
            await running
        await session.say("never mind")

    session = chat(agent, talk)
    assert [message["content"] for message in session.messages] == ["an apple?", "", STOPPED, "never mind", "sorry"]


def test_a_stop_before_the_first_token_leaves_the_conversation_as_it_was(renderer: ChatRenderer) -> None:
    agent = scripted_agent(renderer, "one")

    async def talk(session: ChatSession) -> None:
        running = asyncio.create_task(session.say("count"))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    assert chat(agent, talk).messages == ()


def test_a_reply_that_fails_leaves_the_conversation_as_it_was(renderer: ChatRenderer) -> None:
    agent = scripted_agent(renderer, "one")
    failures = []

    async def talk(session: ChatSession) -> None:
        await session.say("first")
        failures.append(await session.say("second"))  # the script is at its end

    session = chat(agent, talk)
    [failed] = failures
    assert failed.stop_reason is StopReason.ENGINE_ERROR
    assert "the script has 1 replies" in failed.error
    assert [message["content"] for message in session.messages] == ["first", "one"]


def test_a_task_is_scored_and_what_is_said_after_it_stays_in_its_world(renderer: ChatRenderer) -> None:
    def correct(task: Task, episode: Episode) -> float:
        return float(episode.answer == task.ground_truth)

    agent = scripted_agent(renderer, CALL, "21", CALL, "7", reward=correct)
    task = Task(task_id="apples", prompt=TASK.prompt, env_kwargs=TASK.env_kwargs, reward_model={"ground_truth": "21"})
    trajectories = []

    async def talk(session: ChatSession) -> None:
        trajectories.append(await session.run_task(task))
        trajectories.append(await session.say("and one of them?"))

    session = chat(agent, talk)
    scored, more = trajectories
    assert (scored.outcome_reward, scored.process_reward) == (1.0, 0.25)
    assert (more.outcome_reward, more.process_reward) == (0.0, 0.25)
    assert [exchange.is_scored for exchange in session.exchanges] == [True, False]


def test_the_limit_of_steps_is_per_reply(renderer: ChatRenderer) -> None:
    agent = scripted_agent(renderer, CALL, CALL, CALL, "7", overrides=["rollout.max_steps=2"])

    async def talk(session: ChatSession) -> None:
        first = await session.say("an apple?")
        assert first.stop_reason is StopReason.MAX_STEPS
        second = await session.say("go on")
        assert second.stop_reason is StopReason.DONE

    session = chat(agent, talk)
    assert session.messages[-1]["content"] == "7"
    first, second = (exchange.trajectory.steps for exchange in session.exchanges)
    sampled = first[-1].prompt_ids + first[-1].action_ids
    assert second[0].prompt_ids[: len(sampled)] == sampled


def test_the_system_message_is_set_only_at_the_beginning(renderer: ChatRenderer) -> None:
    agent = scripted_agent(renderer, "one", overrides=["env.tools=[look_up]"])

    async def talk(session: ChatSession) -> None:
        session.system = "Be brief."
        await session.say("first")
        with pytest.raises(ConfigError, match="/reset first"):
            session.system = "Be long."

    session = chat(agent, talk)
    assert session.messages[0] == {"role": "system", "content": "Be brief."}
    assert session.system == "Be brief."
