"""Group plans: which rollouts are made of a task.

# shapes.py, in a recipe's folder; chosen with algorithm.group_plan=shapes:warm_and_cold
def warm_and_cold(task, group_size, sampling):
    cold = replace(sampling, temperature=0.3)
    return [Member(number=n, sampling=cold if n % 2 else sampling) for n in range(group_size)]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from agent_r1.config import Config
from agent_r1.errors import AgentR1Error, ConfigError
from agent_r1.registry import Registry, takes
from agent_r1.types import SamplingParams, Task

GREEDY_MEMBER = -1
"""The number of a group's greedy member."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One rollout of a group."""

    number: int
    """Its number in the group, which seeds the rollout and is `Trajectory.member` in the records."""
    sampling: SamplingParams
    """How its actions are sampled; the seed and the stop ids are filled in per call."""
    role: Literal["sampled", "greedy"] = "sampled"
    """`sampled`: trained on. `greedy`: only compared with, as `Group.greedy`; a group has at most one."""


GroupPlan = Callable[[Task, int, SamplingParams], Sequence[Member]]
"""From a task, `rollout.group_size` and the configured sampling parameters to the members of the task's group."""

group_plans: Registry[GroupPlan] = Registry(
    "group plan", accepts=takes(3), expected="a function of a task, the group size and the sampling parameters"
)


@group_plans.register("sampled")
def sampled_members(task: Task, group_size: int, sampling: SamplingParams) -> Sequence[Member]:
    """`group_size` members, all sampled alike."""
    return [Member(number=number, sampling=sampling) for number in range(group_size)]


@group_plans.register("with_greedy")
def with_greedy_member(task: Task, group_size: int, sampling: SamplingParams) -> Sequence[Member]:
    """`group_size` sampled members, and one at temperature 0 to compare them with."""
    return [*sampled_members(task, group_size, sampling), greedy_member(sampling)]


def greedy_member(sampling: SamplingParams) -> Member:
    """The greedy member of a group: temperature 0, all tokens allowed."""
    greedy = replace(sampling, temperature=0.0, top_p=1.0, top_k=0)
    return Member(number=GREEDY_MEMBER, sampling=greedy, role="greedy")


def members_of(plan: GroupPlan, task: Task, group_size: int, sampling: SamplingParams) -> tuple[Member, ...]:
    """The members that `plan` gives to the group of `task`, checked."""
    members = tuple(plan(task, group_size, sampling))
    if not all(isinstance(member, Member) for member in members):
        kinds = sorted({type(member).__name__ for member in members})
        raise ConfigError(f"a group plan must return a list of Member, found {', '.join(kinds)} in it")
    numbers = [member.number for member in members]
    if len(set(numbers)) < len(numbers):
        raise ConfigError(f"the members of a group need different numbers, which seed them; found {numbers}")
    roles = [member.role for member in members]
    if not roles.count("sampled") or roles.count("greedy") > 1:
        raise ConfigError(
            "a group needs one or more members of the role 'sampled' and at most one 'greedy'; the group plan gave "
            f"{roles} for task '{task.task_id}'"
        )
    return members


def configured_members(config: Config, task: Task) -> tuple[Member, ...]:
    """The members that a task's group has in a run."""
    sampling = SamplingParams(max_tokens=config.rollout.max_tokens)
    return members_of(group_plans.get(config.algorithm.group_plan), task, config.rollout.group_size, sampling)


def check_group_plan(config: Config, task: Task, *, needs_greedy: bool = False) -> None:
    """Ask the group plan for the members of one task, so that a plan that cannot work is found before a model is
    loaded. With `needs_greedy`, one of them must be greedy."""
    name = config.algorithm.group_plan
    try:
        members = configured_members(config, task)
    except AgentR1Error:
        raise
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise ConfigError(f"algorithm.group_plan={name} does not work for task '{task.task_id}': {error!r}") from error
    if needs_greedy and not any(member.role == "greedy" for member in members):
        raise ConfigError(
            f"algorithm.estimator={config.algorithm.estimator.name} compares with a greedy rollout of each task, and "
            f"algorithm.group_plan={name} gives task '{task.task_id}' none; add greedy_member(sampling), or use "
            "group_plan=with_greedy"
        )
