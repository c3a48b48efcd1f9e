"""Gold plans of environments: played, scored, and found out when they are wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agent_r1.checks.plans import plans_result
from agent_r1.envs import AgentEnv, StepLimit
from agent_r1.types import Action, Episode, Observation, StepResult, Task, ToolCall


class Lock(AgentEnv):
    """Opens after the right digits; any other digit jams it."""

    plan: Sequence[str] | None = ("1", "2")

    async def reset(self, task: Task) -> Observation:
        self.typed = ""
        return Observation(messages=task.prompt)

    async def step(self, action: Action) -> StepResult:
        self.typed += action.text
        if action.text == "x":
            raise OSError("jammed")
        return StepResult(observation=Observation(messages=()), done=self.typed == "12", info={"typed": self.typed})

    def gold_actions(self, task: Task) -> Sequence[str | Action] | None:
        return self.plan


def opened(task: Task, episode: Episode) -> float:
    return float(bool(episode.steps) and episode.steps[-1].info["typed"] == "12")


def check(plan: Sequence[str] | None, reward: Any = opened, count: int = 3) -> Any:
    class Given(Lock):
        pass

    Given.plan = plan
    tasks = [Task(task_id=f"t{number}", prompt=()) for number in range(count)]
    return asyncio.run(plans_result(lambda task: StepLimit(Given(), steps=5), reward, tasks))


def test_plans_that_solve_their_tasks_have_no_findings() -> None:
    found = check(("1", "2"))
    assert (found.status, found.seen) == ("ok", "3 of 3 gold plans score full marks, 0 cut ones do")


def test_a_plan_may_have_actions_with_tool_calls() -> None:
    calls = (ToolCall(name="type", arguments={"digit": "1"}),)

    class Keypad(Lock):
        async def step(self, action: Action) -> StepResult:
            digits = [str(call.arguments["digit"]) for call in action.tool_calls]
            return await super().step(Action(text="".join(digits) or action.text))

        def gold_actions(self, task: Task) -> Sequence[str | Action] | None:
            return [Action(text="", tool_calls=calls), "2"]

    found = asyncio.run(plans_result(lambda task: Keypad(), opened, [Task(task_id="t", prompt=())]))
    assert found is not None
    assert (found.status, found.seen) == ("ok", "1 of 1 gold plans score full marks, 0 cut ones do")


def test_at_most_fifty_rows_are_played() -> None:
    assert check(("1", "2"), count=120).seen.startswith("40 of 40 ")  # every third
    assert check(("1", "2"), count=50).seen.startswith("50 of 50 ")


def test_an_environment_without_plans_is_not_checked() -> None:
    assert check(None) is None
    assert asyncio.run(plans_result(lambda task: Lock(), opened, [])) is None


@pytest.mark.parametrize(
    ("plan", "observed"),
    [(("2", "1"), "3 of 3 rows: 't0', 't1', 't2'"), (("1", "x"), "jammed"), (("1",), "3 of 3 rows")],
)
def test_a_plan_that_does_not_solve_its_task_is_a_problem(plan: Sequence[str], observed: str) -> None:
    found = check(plan)
    assert found.status == "problem"
    assert found.findings[0].rule == "gold plans score full marks"
    assert observed in found.findings[0].observed


def test_a_reward_for_an_unfinished_plan_is_a_problem() -> None:
    found = check(("1", "2"), reward=lambda task, episode: 1.0)
    assert [finding.rule for finding in found.findings] == ["a plan without its last action does not"]
