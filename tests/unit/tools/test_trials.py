"""Trying a tool or a flow alone, without a model and without a run."""

from __future__ import annotations

import json
import time

import pytest

import agent_r1
from agent_r1 import (
    AgentEnvLoop,
    AgentFlowBase,
    Episode,
    Observation,
    StopReason,
    Task,
    ToolContext,
    ToolEnv,
    try_flow,
    try_tool,
)
from agent_r1.errors import ConfigError, EpisodeError
from agent_r1.tools import FunctionTool, calculate

TASK = Task(task_id="t", prompt=({"role": "user", "content": "Largest of 4 9 2?"},))


def stock(item: str, context: ToolContext) -> tuple[str, float]:
    """How many there are."""
    return str(context.task.env_kwargs["stock"][item]), 0.5


def test_a_call_is_tried_with_the_row_it_is_made_in() -> None:
    outcome = try_tool(stock, {"item": "tea"}, env_kwargs={"stock": {"tea": 4}})
    assert (outcome.status, outcome.response.text, outcome.reward) == ("ok", "4", 0.5)


def test_a_trial_tells_the_models_mistakes_from_the_tools() -> None:
    assert try_tool(stock, {"thing": "tea"}).status == "invalid"
    assert try_tool(calculate, {"expression": "1/0"}).status == "error"


def test_limits_of_a_trial_are_those_of_a_configuration() -> None:
    def sleep() -> str:
        """Sleep."""
        time.sleep(0.5)
        return "awake"

    outcome = try_tool(sleep, {}, timeout=0.05)
    assert (outcome.status, outcome.response.text) == ("timeout", "Error: sleep timed out after 0.05 seconds")
    with pytest.raises(ConfigError, match="Did you mean 'timeout'"):
        try_tool(sleep, {}, timout=5)


def test_a_trial_gives_back_what_the_tool_kept_for_the_episode() -> None:
    closed = []

    class Counting(FunctionTool):
        async def close(self, context: ToolContext) -> None:
            closed.append(context.task.env_kwargs)

    try_tool(Counting(stock), {"item": "tea"}, env_kwargs={"stock": {"tea": 4}})
    assert closed == [{"stock": {"tea": 4}}]


class Twice(AgentFlowBase):
    """Asks, and asks again."""

    async def run(self, task: Task) -> Episode:
        first = await self.act(self.render(Observation(messages=task.prompt)))
        self.record(first, reward=0.25, done=False)
        again = (*task.prompt, first.action.as_message(), {"role": "user", "content": "Sure?"})
        self.record(await self.act(self.render(Observation(messages=again), after=first)), reward=0.0, done=True)
        return self.episode(StopReason.DONE)


def test_a_flow_plays_the_replies_it_is_given() -> None:
    episode = try_flow(Twice, TASK, ["4", "9"])
    assert [(step.action.text, step.reward) for step in episode.steps] == [("4", 0.25), ("9", 0.0)]
    first, second = episode.steps
    assert second.prompt_ids[: len(first.prompt_ids + first.action_ids)] == first.prompt_ids + first.action_ids


def test_a_trial_of_the_environment_loop_runs_tools() -> None:
    call = f"<tool_call>{json.dumps({'name': 'calculate', 'arguments': {'expression': '6*7'}})}</tool_call>"
    episode = try_flow(AgentEnvLoop, TASK, [call, "42"], make_env=lambda task: ToolEnv([calculate]))
    assert (episode.metrics["tool/calculate/calls"], episode.final_text) == (1.0, "42")


def test_replies_that_are_too_few_or_too_many_are_told() -> None:
    with pytest.raises(EpisodeError, match="the script has 1 replies but 2 were asked for"):
        try_flow(Twice, TASK, ["4"])
    with pytest.raises(ConfigError, match=r"Twice ended after 2 calls of the model; .* \['8'\] were never asked for"):
        try_flow(Twice, TASK, ["4", "9", "8"])


def test_a_flow_without_an_episode_or_a_step_says_what_is_missing() -> None:
    class Forgets(AgentFlowBase):
        async def run(self, task: Task) -> Episode:
            return None  # type: ignore[return-value]

    class Unrecorded(AgentFlowBase):
        async def run(self, task: Task) -> Episode:
            await self.act(self.render(Observation(messages=task.prompt)))
            return self.episode(StopReason.DONE)

    with pytest.raises(ConfigError, match="must return an Episode, got NoneType; end it with: return self"):
        try_flow(Forgets, TASK, [])
    with pytest.raises(ConfigError, match=r"Unrecorded\.run recorded no step; call self\.record"):
        try_flow(Unrecorded, TASK, ["4"])


def test_both_trials_are_at_the_front_door() -> None:
    assert {"try_flow", "try_tool"} <= set(agent_r1.__all__)
