"""Simulated runs: hand-computed steps, invariants, and the rules of the collectors in `agent_r1.rollout`."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_r1.planning import (
    Call,
    EngineRates,
    RecordedEpisode,
    Setup,
    UpdateCost,
    Workload,
    estimate_steps,
    simulate,
    splits_of,
)

RATES = EngineRates(per_prompt_token=0.01, base=0.1, per_request=0.05)
FREE = EngineRates(per_prompt_token=0.0, base=0.0, per_request=0.0)


def call(**changes: Any) -> Call:
    return Call(**{"wait": 0.0, "prompt_tokens": 10, "new_tokens": 10, "action_tokens": 4, "env": 1.0, **changes})


def episode(*calls: Call) -> RecordedEpisode:
    return RecordedEpisode(calls=calls)


def workload(*groups: tuple[RecordedEpisode, ...], **changes: Any) -> Workload:
    plain = Workload(
        groups=groups,
        rates=RATES,
        update=UpdateCost(base=0.0, per_token=0.01),
        trained_share=1.0,
        weight_sync=0.5,
    )
    return replace(plain, **changes)


def setup(**changes: Any) -> Setup:
    return Setup(**{"groups_per_step": 1, "group_size": 2, **changes})


def test_one_engine_two_episodes_and_a_tool_by_hand() -> None:
    """0 - 0.1: the prompt, once for the group; 0.1 - 0.9: 4 tokens for both at 0.2 s; 1.9: the tool has answered. The
    update of 10 + 4 + 4 tokens takes 0.18 s, the weights 0.5 s."""
    first, second = episode(call()), episode(call(new_tokens=0))
    run = simulate(workload((first, second)), setup(), steps=1)
    [step] = run.steps
    assert (step.collect, step.update, step.weight_sync) == pytest.approx((1.9, 0.18, 0.5))
    assert step.total == pytest.approx(2.58)
    assert run.engine_share == pytest.approx(0.9 / 2.58)
    assert run.learner_share == pytest.approx(0.18 / 2.58)
    assert (run.sampled_tokens, run.prompt_tokens) == (8, 10)


def test_with_one_slot_episodes_come_one_after_the_other() -> None:
    """Each alone: 0.6 s for 4 tokens and 1 s for the tool; the first also has the prompt of 0.1 s."""
    pair = (episode(call()), episode(call(new_tokens=0)))
    [step] = simulate(workload(pair), setup(concurrency=1), steps=1).steps
    assert step.collect == pytest.approx(0.1 + 2 * 1.6)


def test_two_engines_have_an_episode_each() -> None:
    """Each computes the prompt, and decodes alone at 0.15 s."""
    pair = (episode(call()), episode(call(new_tokens=0)))
    [step] = simulate(workload(pair), setup(engines=2, learners=2), steps=1).steps
    assert step.collect == pytest.approx(0.1 + 0.6 + 1.0)
    assert step.update == pytest.approx(0.18 / 1.9)


def test_a_later_call_computes_only_what_is_new_in_its_prompt() -> None:
    one = episode(call(), call(prompt_tokens=30, new_tokens=16))
    [step] = simulate(workload((one,)), setup(group_size=1), steps=1).steps
    assert step.collect == pytest.approx(0.1 + 0.6 + 1.0 + 0.16 + 0.6 + 1.0)


def test_a_later_call_whose_prompt_shares_nothing_computes_all_of_it() -> None:
    """As in environments whose next prompt is a new text."""
    run = simulate(workload((episode(call(), call(prompt_tokens=30, new_tokens=30)),)), setup(group_size=1), steps=1)
    assert run.prompt_tokens == 10 + 30


def test_waits_and_the_cost_of_calls_delay_an_episode_and_keep_no_engine_busy() -> None:
    one = workload((episode(call(wait=2.0)),), rates=replace(RATES, per_call=0.25))
    run = simulate(one, setup(group_size=1), steps=1)
    assert run.steps[0].collect == pytest.approx(2.0 + 0.25 + 0.7 + 1.0)
    assert run.engine_share * run.steps[0].total == pytest.approx(0.7)


def test_overlap_hides_the_straggler() -> None:
    """A group of 10 s in every four of 1 s: two per step wait for it without overlap, and rarely with it."""
    slow, fast = (episode(call(env=10.0)),), (episode(call(env=1.0)),)
    work = workload(slow, fast, fast, fast, rates=FREE, weight_sync=0.0)
    sizes = {"groups_per_step": 2, "group_size": 1}
    waiting = estimate_steps(work, setup(**sizes)).step_seconds
    overlapping = estimate_steps(work, setup(**sizes, max_staleness=2)).step_seconds
    assert overlapping < 0.75 * waiting


def test_episodes_that_are_alike_take_as_long_without_stragglers() -> None:
    """The prompt of 100 tokens, which one member computed, is computed once per group."""
    later = call(prompt_tokens=120, new_tokens=6)
    first = episode(call(prompt_tokens=100, new_tokens=100), later)
    others = episode(call(prompt_tokens=100, new_tokens=0), later)
    alike, size = workload((first, others, others, others)), setup(groups_per_step=2, group_size=4)
    expected, found = simulate(alike, size, steps=2), simulate(alike.without_stragglers(), size, steps=2)
    assert found == expected
    assert found.prompt_tokens == 2 * 2 * (100 + 4 * 6)


def test_without_stragglers_every_episode_takes_the_mean() -> None:
    """Actions of 4 and 12 tokens, tools of 1 and 5 s: 8 tokens for both at 0.2 s after the prompt, then 3 s."""
    pair = (episode(call()), episode(call(new_tokens=0, action_tokens=12, env=5.0)))
    [step] = simulate(workload(pair).without_stragglers(), setup(), steps=1).steps
    assert step.collect == pytest.approx(0.1 + 8 * 0.2 + 3.0)


def test_every_split_is_tried() -> None:
    found = [(one.engines, one.learners, one.shared) for one in splits_of(3, setup())]
    assert found == [(3, 3, True), (1, 2, False), (2, 1, False)]
    assert [one.num_devices for one in splits_of(3, setup())] == [3, 3, 3]
    many = splits_of(64, setup())
    assert len(many) == 13
    assert {many[1].engines, many[-1].engines} == {1, 63}
    assert all(one.num_devices == 64 for one in many)


calls = st.builds(
    lambda wait, prompt, new, action, env: call(
        wait=wait, prompt_tokens=prompt + new, new_tokens=new, action_tokens=action, env=env
    ),
    st.floats(0, 0.2),
    st.integers(0, 30),
    st.integers(1, 20),
    st.integers(1, 15),
    st.floats(0, 4),
)
episodes = st.lists(calls, min_size=1, max_size=3).map(lambda many: episode(*many))
groups = st.lists(episodes, min_size=2, max_size=2).map(tuple)
workloads = st.lists(groups, min_size=1, max_size=4).map(lambda many: workload(*many))


@pytest.mark.whole
@settings(max_examples=40)
@given(workloads, st.integers(1, 3), st.integers(0, 3), st.integers(1, 6), st.booleans(), st.integers(0, 9))
def test_the_bound_holds_no_group_is_lost_or_trained_twice_and_tokens_are_conserved(
    work: Workload, size: int, staleness: int, slots: int, shared: bool, seed: int
) -> None:
    planned = setup(groups_per_step=size, max_staleness=staleness, concurrency=slots, shared=shared)
    run = simulate(work, planned, steps=6, seed=seed)
    assert all(0 <= step.staleness <= staleness for step in run.steps)
    trained = [number for step in run.steps for number in step.groups]
    assert sorted(trained) == list(range(6 * size))
    assert run.sampled_tokens == sum(step.tokens for step in run.steps)
    assert 0.0 <= run.engine_share <= 1.0 + 1e-9
    assert 0.0 <= run.learner_share <= 1.0


@pytest.mark.whole
@settings(max_examples=40)
@given(workloads, st.integers(1, 4), st.integers(0, 9))
def test_more_engines_and_more_learners_are_never_slower(work: Workload, size: int, seed: int) -> None:
    """One call per episode and prompts that no cache shares, so that nothing but the hardware differs: with several
    calls, episodes that meet at other times may be slower on more engines, as in any queue."""
    single = tuple(tuple(episode(replace(e.calls[0], prompt_tokens=0, new_tokens=0)) for e in g) for g in work.groups)
    work = replace(work, groups=single)

    def seconds(**hardware: int) -> float:
        run = simulate(work, setup(groups_per_step=size, **hardware), steps=2, seed=seed)
        return sum(step.total for step in run.steps)

    assert seconds(engines=2) <= seconds(engines=1) + 1e-6
    assert seconds(engines=8) <= seconds(engines=1) + 1e-6
    assert seconds(engines=2, learners=4) <= seconds(engines=2, learners=2) + 1e-9


@pytest.mark.whole
@given(workloads, st.integers(0, 9))
def test_a_faster_part_is_never_slower_without_overlap(work: Workload, seed: int) -> None:
    def seconds(faster: Workload) -> float:
        return sum(step.total for step in simulate(faster, setup(groups_per_step=2), steps=2, seed=seed).steps)

    plain = seconds(work)
    assert seconds(replace(work, rates=FREE)) <= plain + 1e-6
    assert seconds(replace(work, weight_sync=0.0)) < plain
    assert seconds(replace(work, update=UpdateCost(base=0.0, per_token=0.0))) <= plain


def test_a_group_of_another_size_is_drawn_from_the_members_of_a_recorded_one() -> None:
    one, other = episode(call(env=1.0)), episode(call(env=2.0))
    work = workload((one, other))
    drawn = work.draw_group(5, random.Random(0))
    assert len(drawn) == 5
    assert set(drawn) <= {one, other}
    assert work.draw_group(2, random.Random(0)) == (one, other)


def test_the_same_seed_gives_the_same_run() -> None:
    work = workload(*((episode(call(env=float(n))), episode(call())) for n in range(5)))
    planned = setup(groups_per_step=3, max_staleness=1)
    assert simulate(work, planned, steps=4, seed=3) == simulate(work, planned, steps=4, seed=3)
    assert simulate(work, planned, steps=4, seed=3) != simulate(work, planned, steps=4, seed=4)
