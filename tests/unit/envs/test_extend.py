"""`AgentEnv.extend`: environments and wrappers that continue with what the user said next."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from agent_r1.envs import AgentEnv, ObservationLimit, StepLimit, TimeLimit, ToolEnv
from agent_r1.errors import EnvTimeoutError
from agent_r1.types import Action, Observation, StepResult, Task, ToolCall
from tests.helpers.shop import COUNT_CALLS, TASK

CALL = Action(text="", tool_calls=(ToolCall(name="count_calls", arguments={}, call_id="c"),))
SAID = {"role": "user", "content": "x" * 50}


def longer(observation: Observation, *more: Any) -> Task:
    return replace(TASK, prompt=(*observation.messages, *more))


async def count(env: AgentEnv) -> str:
    result: Any = await env.step(CALL)
    return result.observation.messages[-1]["content"]


def test_tools_keep_their_state_when_the_conversation_is_extended_and_not_when_it_is_another_one() -> None:
    async def talk() -> list[str]:
        env = ToolEnv([COUNT_CALLS])
        first = await env.reset(TASK)
        seen = [await count(env)]
        observation = await env.extend(longer(first, CALL.as_message(), SAID))
        assert observation.messages == (*TASK.prompt, CALL.as_message(), SAID)
        seen.append(await count(env))
        await env.extend(replace(TASK, prompt=(SAID,)))
        seen.append(await count(env))
        await env.close()
        return seen

    assert asyncio.run(talk()) == ["1", "2", "1"]


def test_a_limit_of_steps_counts_per_reply() -> None:
    async def talk() -> list[bool]:
        env = StepLimit(ToolEnv([COUNT_CALLS]), steps=2)
        first = await env.reset(TASK)
        cut = [(await env.step(CALL)).truncated, (await env.step(CALL)).truncated]
        await env.extend(longer(first, SAID))
        return [*cut, (await env.step(CALL)).truncated]

    assert asyncio.run(talk()) == [False, True, False]


def test_a_limit_of_characters_leaves_what_the_user_says_whole() -> None:
    async def talk() -> Observation:
        env = ObservationLimit(ToolEnv([COUNT_CALLS]), characters=10)
        first = await env.reset(TASK)
        long_result = {"role": "tool", "content": "y" * 50}
        return await env.extend(longer(first, CALL.as_message(), long_result, SAID))

    *_, result, said = asyncio.run(talk()).messages
    assert said == SAID
    assert "left out" in result["content"]


class _Plain(AgentEnv):
    async def reset(self, task: Task) -> Observation:
        await asyncio.sleep(float(task.env_kwargs.get("seconds", 0)))
        return Observation(messages=task.prompt)

    async def step(self, action: Action) -> StepResult:
        return StepResult(observation=None, done=True)


def test_an_environment_without_extend_begins_again_within_its_time_limit() -> None:
    env = TimeLimit(_Plain(), seconds=0.05)
    task = replace(TASK, prompt=(*TASK.prompt, SAID))
    assert asyncio.run(env.extend(task)).messages == task.prompt
    with pytest.raises(EnvTimeoutError, match="extend of _Plain"):
        asyncio.run(env.extend(replace(task, env_kwargs={"seconds": 5})))
