"""`ToolEnv`, and what an environment's `step` may return."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest

from agent_r1.chat import ChatRenderer
from agent_r1.envs import ToolEnv, as_observation, as_step_result
from agent_r1.errors import ConfigError
from agent_r1.tools import FunctionTool, ToolContext, ToolResponse, calculate
from agent_r1.types import (
    Action,
    Observation,
    StepResult,
    StopReason,
    Task,
    ToolCall,
)
from tests.helpers.shop import COUNT_CALLS, LOOK_UP, TASK, run_loop, script


def act_on(env: ToolEnv, *actions: Action, task: Task = TASK) -> list[StepResult]:
    """What the environment answers to the actions of one episode; an episode that takes seconds has hung."""

    async def run() -> list[StepResult]:
        await env.reset(task)
        return [await asyncio.wait_for(env.step(action), 5) for action in actions]

    return asyncio.run(run())


def calling(*calls: tuple[str, dict[str, Any]]) -> Action:
    made = tuple(ToolCall(name=name, arguments=given, call_id=f"call{i:05d}") for i, (name, given) in enumerate(calls))
    return Action(text="calls", tool_calls=made)


# ToolEnv


def test_reset_shows_the_rows_messages_and_the_tools_schemas() -> None:
    observation = asyncio.run(ToolEnv([LOOK_UP, "calculate"]).reset(TASK))
    assert observation.messages == TASK.prompt
    assert observation.tools == (LOOK_UP.tool_schema, calculate.tool_schema)
    assert ToolEnv([LOOK_UP, "calculate"]).preview(TASK) == observation


def test_calls_of_several_tools_are_answered_in_order() -> None:
    action = calling(("calculate", {"expression": "3*7"}), ("look_up", {"item": "pear"}))
    [result] = act_on(ToolEnv([LOOK_UP, calculate]), action)
    assert result.observation is not None
    assert result.observation.messages == (
        *TASK.prompt,
        action.as_message(),
        {"role": "tool", "name": "calculate", "tool_call_id": "call00000", "content": "21"},
        {"role": "tool", "name": "look_up", "tool_call_id": "call00001", "content": "5"},
    )
    assert not result.done


def test_calls_of_one_action_run_at_the_same_time() -> None:
    async def left(context: ToolContext) -> str:
        """Wait for the right hand."""
        context.state["left"].set()
        await context.state["right"].wait()
        return "left"

    async def right(context: ToolContext) -> str:
        """Wait for the left hand."""
        context.state["right"].set()
        await context.state["left"].wait()
        return "right"

    async def prepare(context: ToolContext) -> str:
        """Give both hands something to wait for."""
        context.state.update(left=asyncio.Event(), right=asyncio.Event())
        return "ready"

    env = ToolEnv([FunctionTool(left), FunctionTool(right), FunctionTool(prepare)])
    *_, result = act_on(env, calling(("prepare", {})), calling(("left", {}), ("right", {})))
    assert result.observation is not None
    assert [message["content"] for message in (result.observation.messages or ())[-2:]] == ["left", "right"]


def test_rewards_of_the_calls_are_summed_on_their_step() -> None:
    twice = calling(("look_up", {"item": "apple"}), ("look_up", {"item": "pear"}))
    first, second = act_on(ToolEnv([LOOK_UP, calculate]), twice, calling(("calculate", {"expression": "1+1"})))
    assert (first.reward, second.reward) == (0.5, 0.0)


def test_calls_are_counted_by_tool_and_invented_names_together() -> None:
    action = calling(
        ("look_up", {"item": "apple"}), ("look_up", {"item": "gold"}), ("look_up", {}), ("a", {}), ("b", {})
    )
    [result] = act_on(ToolEnv([LOOK_UP]), action)
    counts = {name: value for name, value in result.info["metrics"].items() if not name.endswith("/seconds")}
    assert counts == {
        "tool/look_up/calls": 3,
        "tool/look_up/errors": 1,
        "tool/look_up/invalid": 1,
        "tool/unknown/calls": 2,
        "tool/unknown/invalid": 2,
    }


def submit(answer: str, context: ToolContext) -> tuple[ToolResponse, float, dict[str, Any]]:
    """Give the answer, which ends the episode."""
    context.state["basket"] = [answer]
    return ToolResponse(text=answer, ends_episode=True), 0.25, {"basket": context.state["basket"]}


SUBMIT = FunctionTool(submit)


def test_a_call_that_ends_the_episode_gives_its_answer_and_keeps_its_reward() -> None:
    [result] = act_on(ToolEnv([LOOK_UP, SUBMIT]), calling(("submit", {"answer": "12"}), ("look_up", {"item": "apple"})))
    assert (result.done, result.observation, result.answer, result.reward) == (True, None, "12", 0.5)


def test_a_wrong_call_to_a_tool_that_ends_the_episode_does_not_end_it() -> None:
    [result] = act_on(ToolEnv([SUBMIT]), calling(("submit", {"words": "12"})))
    assert (result.done, result.answer) == (False, None)


def test_the_reward_function_reads_the_answer_and_the_notes_of_a_call(renderer: ChatRenderer) -> None:
    texts = [
        f'<tool_call>{{"name": "{name}", "arguments": {{"{key}": "{value}"}}}}</tool_call>'
        for name, key, value in (("look_up", "item", "pear"), ("submit", "answer", "12"))
    ]
    episode = run_loop(renderer, script(renderer, *texts), ToolEnv([LOOK_UP, SUBMIT]))
    assert (episode.answer, episode.stop_reason) == ("12", StopReason.DONE)
    assert [step.info.get("notes") for step in episode.steps] == [None, [{"basket": ["12"]}]]


def test_error_of_a_tool_and_an_unknown_tool_are_answers_and_the_episode_goes_on() -> None:
    [result] = act_on(ToolEnv([LOOK_UP]), calling(("look_up", {"item": "gold"}), ("lookup", {"item": "pear"})))
    assert result.observation is not None
    assert [message["content"] for message in (result.observation.messages or ())[-2:]] == [
        "Error: there is no gold here",
        "Error: unknown tool 'lookup'. Did you mean 'look_up'? Known: look_up.",
    ]
    assert not result.done


def test_malformed_action_is_told_what_was_wrong_and_the_episode_goes_on() -> None:
    malformed = Action(text="<tool_call>{", content="<tool_call>{", parse_error="Tool call 1 is malformed.")
    result, last = act_on(ToolEnv([LOOK_UP]), malformed, calling(("look_up", {"item": "pear"})))
    assert result.observation is not None
    assert result.observation.messages == (
        *TASK.prompt,
        {"role": "assistant", "content": "<tool_call>{"},
        {"role": "tool", "content": "Error: Tool call 1 is malformed."},
    )
    assert (result.reward, result.done, result.info) == (0.0, False, {"metrics": {"tool/parse_errors": 1.0}})
    assert last.reward == 0.25


def test_mended_calls_are_counted(renderer: ChatRenderer) -> None:
    engine = script(renderer, '<tool_call>{"name": "look_up", "arguments": {"item": "pear",}}</tool_call>', "21")
    episode = run_loop(renderer, engine, ToolEnv([LOOK_UP]))
    assert episode.steps[0].action.repairs == ("call 1: trailing comma",)
    assert episode.metrics["tool/repaired_calls"] == 1.0


def test_action_without_a_call_ends_the_episode() -> None:
    [result] = act_on(ToolEnv([LOOK_UP]), Action(text="21", content="21"))
    assert (result.done, result.reward, result.observation) == (True, 0.0, None)


def test_tools_of_a_row_replace_the_configured_ones() -> None:
    task = Task(task_id="sum", prompt=TASK.prompt, env_kwargs={"tools": ["calculate"]})
    env = ToolEnv([LOOK_UP])
    observation = asyncio.run(env.reset(task))
    assert observation.tools == (calculate.tool_schema,)
    [result] = act_on(env, calling(("look_up", {"item": "apple"})), task=task)
    assert result.observation is not None
    assert "unknown tool 'look_up'" in (result.observation.messages or ())[-1]["content"]


def test_row_without_any_tool_is_refused() -> None:
    with pytest.raises(ConfigError, match="task 'apples' has no tools"):
        asyncio.run(ToolEnv().reset(TASK))


def test_state_of_the_tools_lasts_for_one_episode() -> None:
    env = ToolEnv([COUNT_CALLS])
    for _ in range(2):
        results = act_on(env, calling(("count_calls", {})), calling(("count_calls", {})))
        answers = [result.observation.messages[-1]["content"] for result in results]  # type: ignore[union-attr, index]
        assert answers == ["1", "2"]


# What step may return


def test_plain_tuple_is_a_step_result() -> None:
    observation = Observation(text="more")
    assert as_step_result((observation, 1, False, {"a": 1})) == StepResult(
        observation=observation, reward=1.0, done=False, info={"a": 1}
    )


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_reward_that_is_not_finite_is_refused(reward: float) -> None:
    with pytest.raises(ValueError, match="rewards must be finite"):
        as_step_result(StepResult(observation=None, reward=reward, done=True))
    with pytest.raises(ValueError, match="rewards must be finite"):
        as_step_result((None, reward, True, {}))


@pytest.mark.parametrize(
    ("terminated", "truncated"), [(False, False), (True, False), (False, True), (True, True), (np.True_, np.False_)]
)
def test_gymnasiums_tuple_of_five_is_a_step_result(terminated: bool, truncated: bool) -> None:
    observation = Observation(text="more")
    assert as_step_result((observation, np.float32(0.5), terminated, truncated, {"a": 1})) == StepResult(
        observation=observation, reward=0.5, done=bool(terminated), truncated=bool(truncated), info={"a": 1}
    )
    assert type(as_step_result((observation, 0, terminated, truncated, {})).done) is bool


def test_numpys_numbers_in_a_step_result_become_pythons() -> None:
    """A recorder would write them as text, and the text "False" is true."""
    result = as_step_result(
        StepResult(observation=Observation(text="more"), reward=np.float64(0.5), done=np.False_, truncated=np.True_)  # type: ignore[arg-type]
    )
    assert (result.reward, result.done, result.truncated) == (0.5, False, True)
    assert {type(value) for value in (result.done, result.truncated)} == {bool}
    assert type(result.reward) is float
    assert type(as_step_result(StepResult(observation=None, reward=1, done=True)).reward) is float


@pytest.mark.parametrize(
    ("returned", "form"),
    [(None, "NoneType"), (1.0, "float"), ((None, 1.0, True), "a tuple of 3"), ((None,) * 6, "6")],
)
def test_anything_else_from_step_is_refused(returned: Any, form: str) -> None:
    with pytest.raises(ConfigError, match=f"must return a StepResult, .*terminated, truncated, info.*got .*{form}"):
        as_step_result(returned)


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ((None, 1.0, True, False), "the info in the tuple of 4 .* must be a mapping, got bool"),
        ((None, 1.0, {}, True), "the done in the tuple of 4 .* must be True or False, got dict"),
        ((None, 1.0, True, {}, {}), "the truncated in the tuple of 5 .* must be True or False, got dict"),
        ((None, 1.0, None, False, {}), "the terminated in the tuple of 5 .* must be True or False, got NoneType"),
        ((None, 1.0, np.array([True, False]), False, {}), "the terminated .* got ndarray"),
        ((None, "much", True, False, {}), "the reward in the tuple of 5 .* must be a number, got str"),
        ((None, 10**400, True, {}), "the reward in the tuple of 4 .* must be a number, got int"),
        (StepResult(observation=None, reward="much", done=True), "the reward in the StepResult .* a number, got str"),  # type: ignore[arg-type]
        ((None, "1", True, {}), "the reward in the tuple of 4 .* must be a number, got str"),
        (
            StepResult(observation=None, reward=None, done=True),
            "the reward in the StepResult .* a number, got NoneType",
        ),  # type: ignore[arg-type]
        (StepResult(observation=None, done="no"), "the done in the StepResult .* must be True or False, got str"),  # type: ignore[arg-type]
        (StepResult(observation=None, done=True, answer=7), "the answer in the StepResult .* text or None, got int"),  # type: ignore[arg-type]
        (StepResult(observation=None, done=True, info=[]), "the info in the StepResult .* must be a mapping, got list"),  # type: ignore[arg-type]
        ((None, 1.0, True, {"metrics": ["a"]}), r"info\['metrics'\]=\['a'\]; it must be a mapping of names to numbers"),
        ((None, 1.0, True, {"metrics": {5: 1.0}}), r"info\['metrics'\] with the name 5; metrics have text as names"),
        ((None, 1.0, True, {"metrics": {"a": "b"}}), r"info\['metrics'\]\['a'\]='b' \(str\); metrics are numbers"),
        (("text", 1.0, True, {}), "a str as observation"),
        (StepResult(observation=("a message",)), "a tuple as observation"),  # type: ignore[arg-type]
    ],
)
def test_wrong_entry_of_what_step_returned_is_named(returned: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        as_step_result(returned)


@pytest.mark.parametrize(
    ("returned", "form"), [(None, "NoneType"), ("text", "str"), ((Observation(text="?"), {}), "a tuple of 2")]
)
def test_anything_but_an_observation_from_reset_is_refused(returned: Any, form: str) -> None:
    with pytest.raises(ConfigError, match=f"AgentEnv.reset must return an Observation, and nothing .*; got {form}"):
        as_observation(returned)


def test_step_that_goes_on_needs_an_observation() -> None:
    with pytest.raises(ConfigError, match="no observation although the episode is not done"):
        as_step_result(StepResult(observation=None))
