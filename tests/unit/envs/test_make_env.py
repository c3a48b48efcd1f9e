"""`make_env`: which environment an episode gets, in which limits, and which runner runs its tool calls."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from agent_r1.envs import AgentEnv, StepLimit, TimeLimit, ToolEnv, make_env
from agent_r1.errors import UnknownNameError
from agent_r1.tools import BaseTool, CallOutcome, ToolContext, ToolRunner
from agent_r1.types import Action, Observation, StepResult, Task, ToolCall

CALL = Action(text="", tool_calls=(ToolCall(name="calculate", arguments={"expression": "6 * 7"}),))


def task(**env_kwargs: Any) -> Task:
    return Task(task_id="t", prompt=({"role": "user", "content": "?"},), env_kwargs=env_kwargs)


class CountingRunner(ToolRunner):
    """Counts the calls it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0

    async def call(self, tools: Mapping[str, BaseTool], call: ToolCall, context: ToolContext) -> CallOutcome:
        self.num_calls += 1
        return await super().call(tools, call, context)


@AgentEnv.register("tests_plain_env")
class PlainEnv(AgentEnv):
    """An environment that has never heard of tool runners."""

    def __init__(self, size: int = 1) -> None:
        self.size = size

    async def reset(self, task: Task) -> Observation:
        return Observation(messages=task.prompt)

    async def step(self, action: Action) -> StepResult:
        return StepResult(observation=None, done=True)


class Outer(PlainEnv):
    """Keeps a `ToolEnv` inside, and gives it the runner."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = ToolEnv(["calculate"])

    def set_tool_runner(self, runner: ToolRunner) -> None:
        self.inner.set_tool_runner(runner)

    async def reset(self, task: Task) -> Observation:
        return await self.inner.reset(task)

    async def step(self, action: Action) -> StepResult:
        return await self.inner.step(action)


def one_step(env: AgentEnv) -> Any:
    async def play() -> Any:
        await env.reset(task())
        try:
            return await env.step(CALL)
        finally:
            await env.close()

    return asyncio.run(play())


def test_a_section_without_a_name_makes_a_tool_environment() -> None:
    env = make_env(task(), {"tools": ["calculate"]})
    assert type(env) is ToolEnv
    assert [schema["function"]["name"] for schema in env.preview(task()).tools] == ["calculate"]


def test_the_first_limit_is_the_innermost_wrapper() -> None:
    env = make_env(task(), {"name": "tests_plain_env", "size": 3, "limits": ["steps", {"name": "time", "seconds": 5}]})
    assert isinstance(env, TimeLimit)
    assert isinstance(env.env, StepLimit)
    assert isinstance(env.env.env, PlainEnv)
    assert env.env.env.size == 3


def test_the_environment_of_a_row_is_made_without_arguments_and_with_the_limits() -> None:
    section = {"name": "tool", "tools": ["calculate"], "limits": ["time"]}
    env = make_env(task(env="tests_plain_env"), section)
    assert isinstance(env, TimeLimit)
    assert isinstance(env.env, PlainEnv)
    with pytest.raises(UnknownNameError, match="tests_plain_env"):
        make_env(task(env="tests_plain_en"), section)


def test_the_section_is_left_as_it_is() -> None:
    section = {"name": "tool", "tools": ["calculate"], "limits": ["time"]}
    make_env(task(), section)
    assert section == {"name": "tool", "tools": ["calculate"], "limits": ["time"]}


@pytest.mark.parametrize(
    "section",
    [
        {"tools": ["calculate"]},
        {"tools": ["calculate"], "limits": ["time", "observation", "steps"]},
        {"name": f"{__name__}:Outer"},
    ],
)
def test_calls_run_with_the_runner_that_was_passed(section: dict[str, Any]) -> None:
    runner = CountingRunner()
    result = one_step(make_env(task(), section, runner=runner))
    assert result.observation.messages[-1]["content"] == "42"
    assert runner.num_calls == 1


def test_without_a_runner_calls_run_with_the_default_one() -> None:
    assert one_step(make_env(task(), {"tools": ["calculate"]})).observation.messages[-1]["content"] == "42"


def test_an_environment_that_does_not_know_runners_works_with_one() -> None:
    assert one_step(make_env(task(), {"name": "tests_plain_env"}, runner=CountingRunner())).done


def test_the_runner_is_no_key_of_the_configuration() -> None:
    with pytest.raises(TypeError, match="runner"):
        make_env(task(), {"tools": ["calculate"], "runner": CountingRunner()})
