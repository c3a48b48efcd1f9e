"""`check_env` finds what is wrong with an environment, and nothing in a good one."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

import pytest

import agent_r1
from agent_r1.envs import AgentEnv, GymEnv, ObservationLimit, TimeLimit, ToolEnv, check_env
from agent_r1.findings import Finding
from agent_r1.types import Action, Observation, StepResult, Task

TASK = Task(task_id="t", prompt=({"role": "user", "content": "Begin."},))


class Good(AgentEnv):
    """Goes on for two steps."""

    async def reset(self, task: Task) -> Any:
        self.messages = task.prompt
        self.num_steps = 0
        return Observation(messages=self.messages)

    async def step(self, action: Action) -> Any:
        self.num_steps += 1
        if self.num_steps >= 2:
            return StepResult(observation=None, reward=1.0, done=True)
        self.messages = (*self.messages, action.as_message(), {"role": "user", "content": "And?"})
        return StepResult(observation=Observation(messages=self.messages))


class Leaking(Good):
    seen: list[str] = []  # noqa: RUF012 - the leak

    async def reset(self, task: Task) -> Any:
        await super().reset(task)
        self.seen.append(task.task_id)
        return Observation(messages=(*task.prompt, {"role": "user", "content": f"{len(self.seen)} so far"}))


class NoObservation(Good):
    async def step(self, action: Action) -> Any:
        return StepResult(observation=None)


class NoObservationTuple(Good):
    async def step(self, action: Action) -> Any:
        return None, 0.0, False, {}


class NotFinite(Good):
    async def step(self, action: Action) -> Any:
        return StepResult(observation=None, reward=math.nan, done=True)


class GoesOnAfterDone(Good):
    async def step(self, action: Action) -> Any:
        result = await super().step(action)
        return result if self.num_steps <= 2 else StepResult(observation=Observation(text="still here"))


class TextFromReset(Good):
    async def reset(self, task: Task) -> Any:
        return "Begin."


class DictFromStep(Good):
    async def step(self, action: Action) -> Any:
        return {"observation": None}


class OldGymnasium(Good):
    async def step(self, action: Action) -> Any:
        return None, 0.0, True, False


class HugeReward(Good):
    async def step(self, action: Action) -> Any:
        return StepResult(observation=None, reward=1e10, done=True)


class TextReward(Good):
    async def step(self, action: Action) -> Any:
        return StepResult(observation=None, reward="1", done=True)  # type: ignore[arg-type]


class FiveTuple(Good):
    """Returns what Gymnasium's `step` returns; its second step is a truncation."""

    async def step(self, action: Action) -> Any:
        result = await super().step(action)
        observation = result.observation or Observation(messages=self.messages)
        return observation, result.reward, False, result.done, {}


class MessagesFromStep(Good):
    async def step(self, action: Action) -> Any:
        return ["a message"], 0.0, False, {}


class SharedList(Good):
    async def reset(self, task: Task) -> Any:
        await super().reset(task)
        self.shared: Any = list(task.prompt)
        return Observation(messages=self.shared)

    async def step(self, action: Action) -> Any:
        result = await super().step(action)
        self.shared.append(action.as_message())
        return result if result.done else StepResult(observation=Observation(messages=self.shared))


class OwnMessages(Good):
    async def reset(self, task: Task) -> Any:
        await super().reset(task)
        return Observation(messages=({"role": "user", "content": "Something else."},))


class ClosesOnce(Good):
    closed = False

    async def close(self) -> None:
        if self.closed:
            raise ValueError("closed already")
        self.closed = True


class Blocking(Good):
    async def step(self, action: Action) -> Any:
        time.sleep(0.15)
        return await super().step(action)


class Raising(Good):
    async def step(self, action: Action) -> Any:
        raise OSError("no world")


class Hanging(Good):
    async def reset(self, task: Task) -> Any:
        await asyncio.sleep(60)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("env", "what", "found"),
    [
        (Leaking, "episodes do not leak into each other", "the second reset differs"),
        (
            NoObservation,
            "a step that continues the episode needs an observation",
            "step 0 gave observation=None and done=False",
        ),
        (NoObservationTuple, "a step that continues the episode needs an observation", "step 0 gave"),
        (NotFinite, "rewards are finite", "the reward nan"),
        (GoesOnAfterDone, "nothing happens after the end", "a step after done continued"),
        (TextFromReset, "an observation is an Observation", "reset gave a str"),
        (MessagesFromStep, "an observation is an Observation", "step 0 gave a list"),
        (DictFromStep, "step returns a StepResult or a tuple", "in step 0, AgentEnv.step must return"),
        (OldGymnasium, "step returns a StepResult or a tuple", "the info in the tuple of 4"),
        (HugeReward, "rewards are finite", "step 0 gave the reward 10000000000.0"),
        (
            TextReward,
            "step returns a StepResult or a tuple",
            "the reward in the StepResult that AgentEnv.step returned must be a number, got str",
        ),
        (SharedList, "an observation never changes", "observation 0 was changed"),
        (OwnMessages, "the first messages are the task's", "do not start with task.prompt"),
        (ClosesOnce, "close may be called twice", "ValueError: closed already"),
        (Blocking, "no call blocks the event loop", "step 0 blocked all other episodes for more than 100 ms"),
        (Raising, "nothing raises", "step 0 raised OSError: no world"),
        (Hanging, "nothing raises", "reset raised TimeoutError, after 0.3 s"),
    ],
)
def test_each_fault_is_found_and_said_with_what_to_do(env: type[AgentEnv], what: str, found: str) -> None:
    findings = check_env(env, TASK, call_seconds=0.3 if env is Hanging else 60.0)
    assert {finding.rule for finding in findings} == {findings[0].rule}
    assert findings[0].rule.startswith(what)
    assert found in findings[0].observed
    assert findings[0].fix
    assert str(findings[0]) == f"{findings[0].rule}: {findings[0].observed}. {findings[0].fix}"


@pytest.mark.parametrize(
    "make_env",
    [
        Good,
        FiveTuple,
        lambda: TimeLimit(ObservationLimit(Good(), characters=20), seconds=5),
        lambda: ToolEnv(["calculate"]),
        lambda: GymEnv("tests.helpers.tiny_gym:GuessWord"),
    ],
)
def test_good_environments_have_no_findings(make_env: Callable[[], AgentEnv]) -> None:
    assert check_env(make_env, TASK) == []


def test_actions_of_ones_own_lead_through_the_episode() -> None:
    letters = [Action(text=letter, content=letter) for letter in "abc"]
    assert check_env(lambda: GymEnv("tests.helpers.tiny_gym:GuessWord"), TASK, letters) == []


def test_an_environment_that_cannot_be_made_is_a_finding() -> None:
    def make_env() -> AgentEnv:
        raise OSError("no room")

    findings = check_env(make_env, TASK)
    assert [finding.observed for finding in findings] == ["making the environment raised OSError: no room"]


def test_it_is_public() -> None:
    assert agent_r1.check_env is check_env
    assert Finding(rule="a", observed="b", fix="c") == Finding(rule="a", observed="b", fix="c")


def test_a_list_that_was_given_away_is_one_finding_however_many_observations_it_changed() -> None:
    changed = [finding for finding in check_env(SharedList, TASK) if "never changes" in finding.rule]
    assert len(changed) == 1
