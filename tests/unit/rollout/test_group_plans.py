"""Group plans: which members a group has, how they are seeded, and plans of a user's own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_r1.algorithms import bind_algorithm
from agent_r1.chat import ChatRenderer
from agent_r1.config import AlgorithmConfig, Config, load_config, presets
from agent_r1.config.schema import RolloutConfig
from agent_r1.engines import ScriptedEngine
from agent_r1.envs import AgentEnv
from agent_r1.errors import ConfigError, UnknownNameError
from agent_r1.registry import recipe_folder
from agent_r1.rollout import (
    GroupPlan,
    Member,
    Rollout,
    RolloutLimits,
    check_group_plan,
    greedy_member,
    group_plans,
    make_collector,
    sampled_members,
    with_greedy_member,
)
from agent_r1.seeds import mix_seed
from agent_r1.training.components import make_shaping
from agent_r1.training.plan import check_learns, make_plan
from agent_r1.types import Action, Group, Observation, SamplingParams, StepResult, Task, TokenIds, Trajectory

ALGORITHMS = presets("algorithm")
TASKS = [Task(task_id=name, prompt=({"role": "user", "content": name},)) for name in ("a", "b")]
SAMPLING = SamplingParams(max_tokens=4, temperature=0.7, top_p=0.9, top_k=7)


class OneStep(AgentEnv):
    async def reset(self, task: Task) -> Observation:
        return Observation(messages=task.prompt)

    async def step(self, action: Action) -> StepResult:
        return StepResult(observation=None, done=True)


def say_the_temperature(prompt: TokenIds, sampling: SamplingParams) -> Sequence[int]:
    return (5 + round(10 * sampling.temperature),)


def rollout_of(renderer: ChatRenderer) -> tuple[Rollout, ScriptedEngine]:
    engine = ScriptedEngine(say_the_temperature)
    rollout = Rollout(
        engine=engine,
        renderer=renderer,
        reward=lambda task, episode: 1.0,
        make_env=lambda task: OneStep(),
        limits=RolloutLimits(retries=0),
    )
    return rollout, engine


def run(renderer: ChatRenderer, plan: GroupPlan, *, group_size: int = 3) -> tuple[list[Group], ScriptedEngine]:
    rollout, engine = rollout_of(renderer)
    running = rollout.run(TASKS, group_size=group_size, sampling=SAMPLING, seed=11, plan=plan, first_group_id=4)
    return asyncio.run(running), engine


def config_of(group_plan: str = "sampled", **rollout: Any) -> Config:
    return Config(rollout=RolloutConfig(**rollout), algorithm=AlgorithmConfig(group_plan=group_plan))


def test_sampled_members_are_alike_and_numbered() -> None:
    assert sampled_members(TASKS[0], 3, SAMPLING) == [Member(number=n, sampling=SAMPLING) for n in range(3)]


def test_the_greedy_member_is_number_minus_1_at_temperature_0() -> None:
    *others, greedy = with_greedy_member(TASKS[0], 3, SAMPLING)
    assert others == sampled_members(TASKS[0], 3, SAMPLING)
    assert greedy == Member(
        number=-1, sampling=SamplingParams(max_tokens=4, temperature=0.0, top_p=1.0, top_k=0), role="greedy"
    )


def test_a_rollout_is_seeded_by_its_group_and_its_number_whoever_else_is_in_the_group(renderer: ChatRenderer) -> None:
    _, engine = run(renderer, with_greedy_member)
    expected = {
        mix_seed(mix_seed(mix_seed(11, group_id, number), 0), 0) for group_id in (4, 5) for number in (0, 1, 2, -1)
    }
    assert {sampling.seed for _, sampling in engine.requests} == expected
    _, fewer = run(renderer, sampled_members)
    assert {sampling.seed for _, sampling in fewer.requests} < expected


def test_the_order_of_the_plan_is_the_order_of_the_group(renderer: ChatRenderer) -> None:
    def backwards(task: Task, group_size: int, sampling: SamplingParams) -> Sequence[Member]:
        return [greedy_member(sampling), *reversed(sampled_members(task, group_size, sampling))]

    groups, _ = run(renderer, backwards)
    assert [[t.member for t in group] for group in groups] == [[2, 1, 0], [2, 1, 0]]
    assert [group.greedy is not None and group.greedy.member for group in groups] == [-1, -1]


def test_groups_may_differ_in_size_and_sampling(renderer: ChatRenderer) -> None:
    def by_task(task: Task, group_size: int, sampling: SamplingParams) -> Sequence[Member]:
        if task.task_id == "a":
            return [Member(number=9, sampling=replace(sampling, temperature=0.2))]
        return sampled_members(task, group_size + 1, sampling)

    groups, _ = run(renderer, by_task)
    assert [[(t.member, t.steps[0].action_ids[0]) for t in group] for group in groups] == [
        [(9, 7)],
        [(0, 12), (1, 12), (2, 12), (3, 12)],
    ]


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ([], "one or more members of the role 'sampled'"),
        ([greedy_member(SAMPLING)], "one or more members of the role 'sampled'"),
        ([Member(number=0, sampling=SAMPLING)] * 2, r"different numbers.*found \[0, 0\]"),
        (
            [
                Member(number=0, sampling=SAMPLING),
                *(Member(number=n, sampling=SAMPLING, role="greedy") for n in (1, 2)),
            ],
            "at most one 'greedy'",
        ),
        ([SAMPLING], "list of Member, found SamplingParams"),
    ],
)
def test_a_group_that_cannot_be_is_refused(renderer: ChatRenderer, members: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        run(renderer, lambda task, group_size, sampling: members)


# --- chosen in a configuration ---------------------------------------------------------------------------------------

OWN_PLAN = """
from dataclasses import replace

from agent_r1.rollout import Member, greedy_member


def cool_with_greedy(task, group_size, sampling):
    cool = replace(sampling, temperature=0.3)
    return [*(Member(number=n, sampling=cool) for n in range(group_size - 1)), greedy_member(sampling)]
"""


def collect(renderer: ChatRenderer, config: Config) -> tuple[tuple[Group, ...], list[Trajectory], int]:
    rollout, _ = rollout_of(renderer)
    collector = make_collector(config, rollout, TASKS, make_shaping(config))
    finished: list[Trajectory] = []
    collected = asyncio.run(collector.collect(0, finished.append))
    assert collected.metrics["perf/episodes"] == len(finished)
    return collected.groups, finished, collector.rollouts_per_batch


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_a_plan_of_ones_own_is_one_file_and_one_key(renderer: ChatRenderer, tmp_path: Path, max_staleness: int) -> None:
    (tmp_path / "shapes.py").write_text(OWN_PLAN)
    config = config_of("shapes:cool_with_greedy", groups_per_step=2, group_size=4, max_staleness=max_staleness)
    with recipe_folder(tmp_path):
        check_group_plan(config, TASKS[0])
        groups, finished, per_batch = collect(renderer, config)
    assert len(groups) == 2
    for group in groups:
        assert [t.steps[0].action_ids[0] for t in group] == [8, 8, 8]
        assert group.greedy is not None
        assert group.greedy.steps[0].action_ids[0] == 5
    assert len(finished) >= 8
    assert per_batch == 8


def test_a_registered_plan_is_found_by_its_name() -> None:
    group_plans.register("tests_broken_plan")(broken)
    config = load_config(None, ["model.path=x", "algorithm.group_plan=tests_broken_plan"])
    with pytest.raises(ConfigError, match="group_plan=tests_broken_plan does not work"):
        check_group_plan(config, TASKS[0])


@pytest.mark.whole
def test_of_the_presets_only_remax_has_a_greedy_member() -> None:
    plans = {name: load_config(None, ["model.path=x", f"algorithm={name}"]).algorithm.group_plan for name in ALGORITHMS}
    assert [name for name, plan in plans.items() if plan != "sampled"] == ["remax"]
    assert plans["remax"] == "with_greedy"


def broken(task: Task, group_size: int, sampling: SamplingParams) -> Sequence[Member]:
    return [Member(number=0, sampling=task.extra_info["sampling"])]


def warm_and_cold(task: Task, group_size: int, sampling: SamplingParams) -> Sequence[Member]:
    """As in docs/algorithms.md: no member is greedy."""
    cold = replace(sampling, temperature=0.3)
    return [Member(number=number, sampling=cold if number % 2 else sampling) for number in range(group_size)]


def test_a_plan_without_a_greedy_member_is_refused_for_an_estimator_that_needs_one() -> None:
    settings = [f"algorithm.group_plan={__name__}:warm_and_cold", "model.path=x"]
    for preset, needs_greedy in (("remax", True), ("grpo", False)):
        config = load_config(None, [f"algorithm={preset}", *settings])
        algorithm = bind_algorithm(config.algorithm)
        assert algorithm.needs_greedy == needs_greedy
        if needs_greedy:
            with pytest.raises(ConfigError, match=r"greedy_baseline compares with a greedy rollout .* task 'a' none"):
                check_group_plan(config, TASKS[0], needs_greedy=True)
        else:
            check_group_plan(config, TASKS[0], needs_greedy=False)
    remax = load_config(None, ["algorithm=remax", "model.path=x"])
    check_group_plan(remax, TASKS[0], needs_greedy=bind_algorithm(remax.algorithm).needs_greedy)


@pytest.mark.parametrize("preset", ["grpo", "gigpo", "rloo", "reinforce_pp_baseline"])
def test_a_group_of_one_is_refused_for_an_algorithm_that_compares_members(preset: str, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "2+2?", "answer": "4"}\n')
    settings = [f"algorithm={preset}", "model.path=x", f"data.train=['{rows}']", "rollout.groups_per_step=1"]
    plan = make_plan(load_config(None, [*settings, "rollout.group_size=1"]))
    with pytest.raises(ConfigError, match=r"rollout\.group_size=1: algorithm\.estimator=\w+ compares the rollouts"):
        check_learns(plan)
    check_learns(make_plan(load_config(None, [*settings, "rollout.group_size=2"])))


@pytest.mark.parametrize("preset", ["ppo", "steppo", "pspo", "step_grpo", "reinforce", "reinforce_pp", "remax"])
def test_a_group_of_one_suffices_where_a_rollout_alone_has_credit(preset: str) -> None:
    assert bind_algorithm(load_config(None, [f"algorithm={preset}", "model.path=x"]).algorithm).credits_single_rollouts


@pytest.mark.parametrize(
    ("plan", "error", "problem"),
    [
        ("sampld", UnknownNameError, "unknown group plan 'sampld'. Did you mean 'sampled'"),
        (f"{__name__}:broken", ConfigError, r"does not work for task 'a': KeyError\('sampling'\)"),
        ("builtins:len", ConfigError, "expected a function of a task, the group size and the sampling"),
    ],
)
def test_a_plan_that_cannot_work_is_found_before_a_model_is_loaded(
    plan: str, error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=problem):
        check_group_plan(config_of(plan), TASKS[0])
