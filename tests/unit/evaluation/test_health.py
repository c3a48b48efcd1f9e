"""The health monitor: each trouble is named once, with the key to change, and healthy runs are left in peace."""

from __future__ import annotations

import inspect
import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_r1.algorithms import aggregations, corrections, estimators, policy_losses
from agent_r1.algorithms.algorithm import bind_algorithm
from agent_r1.config import AlgorithmConfig
from agent_r1.config.compose import OPEN_KEYS, known_keys
from agent_r1.evaluation.health import WINDOW, HealthMonitor
from agent_r1.registry import Registry
from agent_r1.runs import RunFolder
from agent_r1.types import Episode, Task
from tests.helpers import commands
from tests.helpers.fuzzing import cases
from tests.helpers.tiny_runs import tiny_overrides

Steps = list[dict[str, float]]


def ramp(start: float, end: float, num_steps: int) -> list[float]:
    """A straight line."""
    return [start + (end - start) * step / max(1, num_steps - 1) for step in range(num_steps)]


def steps_of(**columns: Sequence[float]) -> Steps:
    """Columns as steps; `policy__entropy` is the metric `policy/entropy`."""
    names = [name.replace("__", "/") for name in columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def quickstart(num_steps: int = 20) -> Steps:
    """What the quickstart logs when it learns, with what a reference model and a critic would add."""
    return steps_of(
        reward__outcome=ramp(0.3, 0.99, num_steps),
        reward__success=ramp(0.3, 0.99, num_steps),
        reward__groups_with_spread=ramp(0.8, 0.1, num_steps),
        policy__entropy=ramp(0.35, 0.03, num_steps),
        policy__approx_kl=[1e-7 * (-1) ** step for step in range(num_steps)],
        policy__reference_kl=ramp(0.0, 0.08, num_steps),
        policy__credited_trajectories=ramp(0.8, 0.1, num_steps),
        offpolicy__logprob_difference=[1e-6] * num_steps,
        episode__tool_calls=ramp(1.9, 2.7, num_steps),
        episode__steps=ramp(2.6, 3.5, num_steps),
        episode__truncated=ramp(0.1, 0.0, num_steps),
        episode__cut_actions=ramp(0.1, 0.01, num_steps),
    )


def stuck(num_steps: int = 12, **changed: float) -> Steps:
    """A run that earns little, in which nothing is wrong but what was changed."""
    usual = {
        "reward/outcome": 0.2,
        "reward/success": 0.2,
        "reward/groups_with_spread": 0.6,
        "policy/entropy": 0.4,
        "policy/approx_kl": 1e-4,
        "policy/reference_kl": 0.01,
        "policy/credited_trajectories": 0.6,
        "offpolicy/logprob_difference": 0.004,
        "episode/tool_calls": 1.5,
        "episode/steps": 2.5,
        "episode/truncated": 0.1,
        "episode/cut_actions": 0.1,
    }
    return [usual | {name.replace("__", "/"): value for name, value in changed.items()} for _ in range(num_steps)]


def without_spread(reward: float) -> Steps:
    """All members of all groups earn the same."""
    alike = stuck(reward__groups_with_spread=0.0, policy__credited_trajectories=0.0)
    return [step | {"reward/outcome": reward, "reward/success": reward} for step in alike]


def after(steps: Steps, name: str, values: Sequence[float]) -> Steps:
    """The steps, then as many more as there are values, with the metric set to them."""
    return steps + [steps[-1] | {name: value} for value in values]


def watch(steps: Steps, *, has_tools: bool = True) -> list[str]:
    """All warnings of a series."""
    monitor = HealthMonitor(has_tools=has_tools)
    monitor.replay(steps)
    return monitor.warnings


@dataclass(frozen=True)
class Trouble:
    """A series of metrics, and the one warning it deserves."""

    steps: Steps
    begins: int
    says: str
    keys: tuple[str, ...] = ()


TROUBLES: Mapping[str, Trouble] = {
    "tools never called": Trouble(stuck(episode__tool_calls=0.0), 3, "never calls a tool", ("model.tool_format",)),
    # 0.45 is three tenths of 1.5; the means of three are .97, .63, .33.
    "tool calls collapse": Trouble(
        after(stuck(6), "episode/tool_calls", [1.0, 0.6, 0.3, 0.1, 0.0, 0.0]),
        10,
        "tool calls are collapsing: 0.33 per episode, once 1.50",
        ("reward.process_weight", "optimizer.learning_rate", "algorithm.kl.coefficient"),
    ),
    "malformed calls": Trouble(
        stuck(step__parse_errors=0.8),
        3,
        "80% of the actions are malformed",
        ("model.tool_format", "rollout.max_tokens"),
    ),
    # Ten steps at .2 after .6: their mean is at most .3 at the tenth.
    "success falls": Trouble(
        [step | {"reward/success": 0.6} for step in stuck(6)] + stuck(12),
        14,
        "success has fallen to 0.28, once 0.60",
        ("optimizer.learning_rate", "optimizer.gradient_clip", "algorithm.kl.coefficient"),
    ),
    "entropy collapses": Trouble(
        after(stuck(4), "policy/entropy", [0.2, 0.1, 0.05, 0.02, 0.01, 0.005]),
        9,
        "entropy is collapsing: 0.027, at first 0.400",
        ("algorithm.loss.clip_high", "algorithm.entropy_coefficient", "rollout.temperature"),
    ),
    "no spread, unsolved": Trouble(
        without_spread(reward=0.0),
        3,
        "no group has any spread of reward (mean 0.00)",
        ("rollout.group_size", "rollout.temperature"),
    ),
    "no spread, solved": Trouble(
        without_spread(reward=1.0),
        3,
        "nothing is left to learn",
    ),
    "answers truncated": Trouble(
        stuck(episode__cut_actions=2.0, episode__truncated=0.9),
        3,
        "80% of the actions are cut by the token limit",
        ("rollout.max_tokens", "algorithm.overlong_fraction"),
    ),
    "episodes truncated": Trouble(
        stuck(episode__truncated=0.75),
        3,
        "75% of the episodes are truncated",
        ("rollout.max_steps", "rollout.context_length"),
    ),
    "far from the reference": Trouble(
        after(stuck(20), "policy/reference_kl", [0.05, 0.2, 0.6, 1.0]),
        23,
        "too far from the starting policy: a divergence of 0.283 per token, usually 0.010",
        ("optimizer.learning_rate", "algorithm.epochs", "algorithm.kl.coefficient"),
    ),
    "far in one step": Trouble(
        after(stuck(6), "policy/approx_kl", [-0.2, -0.3, -0.4]),
        8,
        "too far in one step",
        ("optimizer.learning_rate", "algorithm.epochs"),
    ),
    "engine differs from the start": Trouble(
        stuck(offpolicy__logprob_difference=0.3),
        3,
        "log-probs differ by 0.300",
        ("algorithm.off_policy.name", "model.dtype", "rollout.temperature"),
    ),
    "the cache is too small": Trouble(
        stuck(perf__preemptions=70.0, perf__episodes=256.0),
        3,
        "too small for 256 episodes: 70 times in a step",
        ("engine.kv_memory", "rollout.concurrency"),
    ),
    "engine comes to differ": Trouble(
        after(stuck(6), "offpolicy/logprob_difference", [0.1, 0.2, 0.3]), 8, "engine and trainer disagree"
    ),
}


@pytest.mark.parametrize("name", TROUBLES)
def test_each_trouble_is_reported_alone_once_and_when_it_begins(name: str) -> None:
    trouble = TROUBLES[name]
    (warning,) = watch(trouble.steps)
    assert warning.startswith(f"step {trouble.begins}: ")
    assert trouble.says in warning


@pytest.mark.parametrize("name", TROUBLES)
def test_a_warning_names_keys_that_exist(name: str) -> None:
    """A dotted word of a message is a key of the schema, or an argument of a part that has it."""
    trouble = TROUBLES[name]
    (warning,) = watch(trouble.steps)
    named = re.findall(r"\b[a-z_]+(?:\.[a-z_]+)+\b", warning)
    assert set(trouble.keys) <= set(named)
    for key in named:
        assert key in known_keys() or is_argument(key), f"there is no key {key}"


def is_argument(key: str) -> bool:
    """`algorithm.loss.clip_high` is one: `clip_high` is an argument of some loss."""
    place, _, argument = key.rpartition(".")
    registries: Mapping[str, Registry[Any]] = {
        "algorithm.estimator": estimators,
        "algorithm.loss": policy_losses,
        "algorithm.aggregation": aggregations,
        "algorithm.off_policy": corrections,
    }
    if place not in OPEN_KEYS or place not in registries:
        return False
    registry = registries[place]
    parts = [registry.get(name) for name in registry.names()]
    return argument == "name" or any(argument in inspect.signature(part).parameters for part in parts)


def test_the_advice_about_the_engine_names_a_correction_that_exists() -> None:
    (warning,) = watch(TROUBLES["engine differs from the start"].steps)
    (name,) = re.findall(r"algorithm\.off_policy\.name=(\w+)", warning)
    assert bind_algorithm(AlgorithmConfig(off_policy={"name": name})).correct is not None


@pytest.mark.parametrize("has_tools", [True, False])
def test_the_quickstart_gives_no_warning(has_tools: bool) -> None:
    assert watch(quickstart(), has_tools=has_tools) == []


def test_a_run_that_learns_nothing_yet_gives_no_warning() -> None:
    assert watch(stuck(50)) == []


def test_a_model_without_tools_is_not_asked_to_call_them() -> None:
    assert watch(stuck(episode__tool_calls=0.0), has_tools=False) == []


def test_a_solved_task_may_do_without_tools_and_without_entropy() -> None:
    solved = stuck(reward__success=0.95, reward__outcome=0.95)
    falling = [step | {"policy/entropy": 0.4 * 0.5**n, "episode/tool_calls": 0.0} for n, step in enumerate(solved)]
    assert watch(falling) == []


def test_one_odd_batch_is_no_trouble() -> None:
    odd = {
        "reward/groups_with_spread": 0.0,
        "policy/entropy": 0.0,
        "episode/tool_calls": 0.0,
        "episode/truncated": 1.0,
        "policy/approx_kl": 0.25,
        "offpolicy/logprob_difference": 0.12,
    }
    assert watch([*stuck(8), stuck()[0] | odd, *stuck(8)]) == []


@pytest.mark.parametrize("num_steps", range(WINDOW))
def test_nothing_is_said_before_there_are_enough_steps(num_steps: int) -> None:
    assert watch(stuck(num_steps, reward__groups_with_spread=0.0, episode__tool_calls=0.0)) == []


def test_a_trouble_is_reported_again_only_after_it_had_gone() -> None:
    bad, good = stuck(10, episode__truncated=0.9), stuck(10)
    warnings = watch(bad + good + bad)
    assert [warning.split(":")[0] for warning in warnings] == ["step 3", "step 22"]


def test_several_troubles_are_reported_side_by_side() -> None:
    warnings = watch(stuck(episode__tool_calls=0.0, episode__truncated=0.9, offpolicy__logprob_difference=0.3))
    assert len(warnings) == 3


def test_look_returns_only_what_begins() -> None:
    monitor = HealthMonitor(has_tools=True)
    returned = [monitor.observe(step) for step in stuck(6, episode__truncated=0.9)]
    assert [len(new) for new in returned] == [0, 0, 1, 0, 0, 0]
    assert monitor.warnings == [f"step 3: {returned[2][0]}"]


@pytest.mark.parametrize("name", TROUBLES)
@pytest.mark.parametrize("resumed_at", [1, 4, 9, 11])
def test_a_resumed_run_that_replays_its_log_has_the_warnings_of_the_whole_one(name: str, resumed_at: int) -> None:
    """Six digits are logged, and a line has its step."""
    steps = TROUBLES[name].steps
    logged = [
        json.loads(json.dumps({"step": number, **{key: float(f"{value:.6g}") for key, value in step.items()}}))
        for number, step in enumerate(steps[:resumed_at], start=1)
    ]
    resumed = HealthMonitor(has_tools=True)
    resumed.replay(logged)
    for step in steps[resumed_at:]:
        resumed.observe(step)
    assert resumed.warnings == watch(steps)


def test_a_line_that_only_counts_failures_is_no_step() -> None:
    steps = without_spread(0.1)
    between = [
        line for number, step in enumerate(steps) for line in (step, {"step": number, "error/failed_records": 1.0})
    ]
    assert watch(between) == watch(steps) != []


METRICS = sorted(stuck()[0])
REALISTIC = st.floats(min_value=-1e6, max_value=1e6)


@settings(max_examples=cases(100), deadline=None)
@given(
    steps=st.lists(st.dictionaries(st.sampled_from(METRICS), REALISTIC), max_size=12),
    has_tools=st.booleans(),
)
def test_no_metrics_make_the_monitor_raise(steps: Steps, has_tools: bool) -> None:
    warnings = watch(steps, has_tools=has_tools)
    assert all(re.match(r"step \d+: \w", warning) for warning in warnings)


@settings(max_examples=cases(100), deadline=None)
@given(
    steps=st.lists(st.dictionaries(st.sampled_from(METRICS), REALISTIC), max_size=12),
    cut=st.integers(0, 12),
)
def test_replay_and_look_are_the_same_for_any_series(steps: Steps, cut: int) -> None:
    resumed = HealthMonitor(has_tools=True)
    resumed.replay(steps[:cut])
    for step in steps[cut:]:
        resumed.observe(step)
    assert resumed.warnings == watch(steps)


# --- held-out tasks -------------------------------------------------------------------------------------------------


def held_out(success: float, rows: int = 512) -> dict[str, float]:
    return {"eval/all/greedy": success, "eval/all/rows": float(rows)}


def test_held_out_success_that_falls_is_told_once_and_again_after_it_had_risen() -> None:
    monitor = HealthMonitor(has_tools=True)
    told = [len(monitor.observe_evaluation(held_out(success))) for success in (0.506, 0.436, 0.4, 0.52, 0.41)]
    assert told == [0, 1, 0, 0, 1]
    assert monitor.warnings[0].startswith("step 0: held-out success has fallen to 43.6%, before training 50.6%")


def test_a_fall_that_other_tasks_might_not_show_is_no_trouble() -> None:
    assert HealthMonitor(has_tools=True).observe_evaluation(held_out(0.2)) == []
    for before, after, rows in ((0.506, 0.456, 512), (0.5, 0.4, 64), (1.0, 0.99, 100_000), (0.3, 0.6, 512)):
        monitor = HealthMonitor(has_tools=True)
        assert [monitor.observe_evaluation(held_out(success, rows)) for success in (before, after)] == [[], []]
    assert HealthMonitor(has_tools=True).observe_evaluation(held_out(math.nan)) == []


def test_process_rewards_that_rise_while_held_out_success_falls_are_named_and_a_resumed_run_says_the_same() -> None:
    lines = [held_out(0.506), *steps_of(reward__process=ramp(0.05, 0.11, 20), reward__outcome=ramp(0.3, 0.45, 20))]
    monitor = HealthMonitor(has_tools=True)
    monitor.replay([*lines, held_out(0.436)])
    [warning] = monitor.warnings
    assert "process rewards rise from 0.053 to 0.107" in warning
    assert "reward.process_weight=0" in warning
    resumed = HealthMonitor(has_tools=True)
    resumed.replay(lines)
    resumed.observe_evaluation(held_out(0.436))
    assert resumed.warnings == monitor.warnings


# --- false alarms ---------------------------------------------------------------------------------------------------


def test_a_critic_learns_from_groups_without_spread() -> None:
    """Groups of one have none by definition."""
    assert watch(stuck(reward__groups_with_spread=0.0, policy__credited_trajectories=1.0)) == []


def test_the_distance_from_the_start_may_climb_from_zero() -> None:
    climbing = [0.0, 0.002, 0.006, 0.012, 0.04, 0.08, 0.13, 0.19, 0.26, 0.33, 0.4, 0.46, 0.52, 0.6, 0.71, 0.8]
    assert watch([step | {"policy/reference_kl": kl} for step, kl in zip(stuck(16), climbing, strict=True)]) == []


def test_a_few_batches_without_spread_may_be_chance() -> None:
    assert (
        watch(stuck(6) + stuck(5, reward__groups_with_spread=0.0, policy__credited_trajectories=0.0) + stuck(6)) == []
    )


def test_a_number_at_its_threshold_is_not_reported_over_and_over() -> None:
    wobble = [0.04 + 0.002 * (-1) ** (step // 4) for step in range(60)]
    assert len(watch(after(stuck(4), "policy/entropy", wobble))) == 1


def test_steps_without_an_update_do_not_end_a_trouble() -> None:
    steps = after(stuck(4), "policy/entropy", [0.01] * 60)
    for step in steps[10::7]:
        del step["policy/entropy"]
    assert len(watch(steps)) == 1


def test_what_was_not_measured_is_not_reported() -> None:
    assert watch([{"reward/success": 0.0}] * 6) == []


def test_numbers_that_are_not_finite_or_huge_do_not_stop_the_run() -> None:
    for odd in ([math.inf, -math.inf, 1.0], [math.nan] * 3, [1e308] * 3):
        series = [dict.fromkeys(METRICS, value) for value in odd * 2]
        watch(series)
    assert watch([step | {"policy/entropy": math.nan} for step in stuck(8)]) == []


@pytest.mark.whole
def test_a_look_costs_the_same_after_thousands_of_steps() -> None:
    started = time.perf_counter()
    watch(stuck(5000))
    assert time.perf_counter() - started < 10


# --- a whole run ----------------------------------------------------------------------------------------------------


def always_half(task: Task, episode: Episode) -> float:
    """Cannot tell a good answer from a bad one."""
    return 0.5


@pytest.mark.whole
def test_a_run_with_a_constant_reward_is_told_that_nothing_is_learned(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = commands.train(*tiny_overrides(tmp_path, model_folder, "trainer.steps=4"), reward=always_half)
    written = json.loads((tmp_path / "tiny" / "summary.json").read_text())
    assert written["warnings"] == summary.warnings
    (warning,) = [line for line in summary.warnings if "spread" in line]
    assert warning.startswith("step 3: no group has any spread of reward (mean 0.50)")
    [stored] = [line for line in RunFolder(tmp_path / "tiny").read_warnings() if "spread" in line["text"]]
    assert (stored["step"], stored["rule"], f"step 3: {stored['text']}") == (3, "no spread", warning)
    printed = capsys.readouterr().out
    assert printed.count("warning: no group has any spread of reward (mean 0.50), so nothing is learned.") == 1


@pytest.mark.whole
def test_a_resumed_run_has_the_warnings_from_before(tmp_path: Path, model_folder: Path) -> None:
    run = tiny_overrides(tmp_path, model_folder)
    whole = commands.train(*run, "run.name=whole", quiet=True, reward=always_half)
    commands.train(*run, "trainer.steps=3", quiet=True, reward=always_half)
    resumed = commands.train(*run, quiet=True, reward=always_half)
    assert resumed.warnings == whole.warnings
    assert len(resumed.warnings) >= 1
    assert RunFolder(tmp_path / "tiny").read_warnings() == RunFolder(tmp_path / "whole").read_warnings() != []
