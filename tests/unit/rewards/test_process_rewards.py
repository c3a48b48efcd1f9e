"""Process rewards and their balance against the outcome: numbers by hand, a slow reference, saved state."""

from __future__ import annotations

import io
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_r1.rewards import NORMALISATIONS, ProcessBalance, RewardShaping, ShapedRewards, overlong_penalty
from agent_r1.rewards.process import RunningSpread, returns_to_go
from agent_r1.types import Action, Group, Observation, Step, StopReason, Task, Trajectory
from tests.helpers.fuzzing import cases


def make_step(reward: float, num_tokens: int = 1) -> Step:
    return Step(
        observation=Observation(text="?"),
        prompt_ids=(1,),
        action=Action(text="!"),
        action_ids=(2,) * num_tokens,
        rollout_logprobs=(-1.0,) * num_tokens,
        reward=reward,
        done=False,
        policy_versions=(0,) * num_tokens,
    )


def member(
    rewards: Sequence[float],
    outcome: float = 0.0,
    *,
    lengths: Sequence[int] | None = None,
    stop_reason: StopReason = StopReason.DONE,
) -> Trajectory:
    """A rollout whose steps earned these process rewards."""
    sizes = lengths or [1] * len(rewards)
    return Trajectory(
        task_id="task",
        group_id=0,
        member=0,
        steps=tuple(make_step(reward, size) for reward, size in zip(rewards, sizes, strict=True)),
        outcome_reward=outcome,
        stop_reason=stop_reason,
    )


def make_group(*members: Trajectory, group_id: int = 0, greedy: Trajectory | None = None) -> Group:
    return Group(task=Task(task_id="task", prompt=()), group_id=group_id, trajectories=members, greedy=greedy)


def members(*groups: Sequence[Sequence[float]]) -> list[list[Trajectory]]:
    return [[member(rewards) for rewards in group] for group in groups]


def shape(balance: ProcessBalance, *groups: Group, overlong_fraction: float = 0.0) -> ShapedRewards:
    return RewardShaping(process=balance, max_tokens=100, overlong_fraction=overlong_fraction)(groups)


# --- each normalisation by hand ------------------------------------------------------------------------------------

# Sums (.2, 0) and (-.3,). Returns-to-go: .2, .1 | 0 | -.3, .1
HAND = ([[0.1, 0.1], [0.0]], [[-0.4, 0.1]])


def test_returns_to_go_by_hand() -> None:
    assert returns_to_go([0.1, 0.1, -0.4], 1.0) == pytest.approx([-0.2, -0.3, -0.4])
    assert returns_to_go([1.0, 0.0, 4.0], 0.5) == [2.0, 2.0, 4.0]
    assert returns_to_go([], 0.9) == []


@pytest.mark.parametrize(
    ("normalisation", "gamma", "divisors"),
    [
        pytest.param("none", 1.0, [1.0, 1.0], id="none"),
        pytest.param("return_max", 1.0, [0.3, 0.3], id="the largest return-to-go is -.3"),
        pytest.param("return_max", 0.5, [0.35, 0.35], id="discounted: -.4 + .5 * .1"),
        pytest.param("return_max", 0.0, [0.4, 0.4], id="gamma 0 leaves single rewards: -.4"),
        pytest.param("group_std", 1.0, [0.2 / math.sqrt(2), 1.0], id="a group of one has no spread"),
        pytest.param("running", 1.0, [math.sqrt(0.148 / 4)] * 2, id="mean .02, squares .148 over 5 returns"),
    ],
)
def test_each_normalisation_by_hand(normalisation: str, gamma: float, divisors: list[float]) -> None:
    balance = ProcessBalance(weight=0.5, normalisation=normalisation, gamma=gamma)
    assert balance.observe(members(*HAND)) == pytest.approx([0.5 / divisor for divisor in divisors])


def test_a_factor_scales_every_step_of_a_trajectory_where_it_is() -> None:
    assert ProcessBalance().balanced(member([0.1, 0.0, -0.2]), 5.0) == pytest.approx([0.5, 0.0, -1.0])
    assert ProcessBalance().balanced(member([]), 5.0) == []


def test_every_group_has_its_own_spread_and_a_discount_does_not_change_it() -> None:
    groups = members([[1.0, 1.0], [0.0, 0.0]], [[0.0, 0.0, 10.0], [0.0], [5.0]])
    expected = pytest.approx([1 / math.sqrt(2), 1 / 5.0])
    assert ProcessBalance(normalisation="group_std").observe(groups) == expected
    assert ProcessBalance(normalisation="group_std", gamma=0.1).observe(groups) == expected


def test_only_running_remembers() -> None:
    for normalisation in NORMALISATIONS:
        balance = ProcessBalance(normalisation=normalisation)
        first = balance.observe(members([[3.0], [1.0]]))
        balance.observe(members([[100.0], [-70.0]]))
        assert (balance.observe(members([[3.0], [1.0]])) == first) is (normalisation != "running")


# --- a slow reference ----------------------------------------------------------------------------------------------

Rewards = list[list[list[float]]]


def ragged_groups() -> st.SearchStrategy[Rewards]:
    """Process rewards of the steps of the members of some groups; any of them may be empty."""
    reward = st.integers(-200, 200).map(lambda number: number / 100)
    return st.lists(st.lists(st.lists(reward, max_size=5), max_size=5), max_size=4)


def reference_factors(groups: Rewards, normalisation: str, weight: float, gamma: float, bound: float) -> list[float]:
    """The table of the module, with sums written out."""
    cut = [[[min(max(reward, -bound), bound) for reward in steps] for steps in group] for group in groups]
    togo = [
        sum(gamma ** (later - now) * steps[later] for later in range(now, len(steps)))
        for group in cut
        for steps in group
        for now in range(len(steps))
    ]
    factors = []
    for group in cut:
        sums = [sum(steps) for steps in group]
        divisor = {
            "none": 1.0,
            "return_max": max((abs(number) for number in togo), default=0.0),
            "group_std": statistics.stdev(sums) if len(sums) > 1 else 0.0,
            "running": statistics.stdev(togo) if len(togo) > 1 else 0.0,
        }[normalisation]
        factors.append(weight if divisor < 1e-8 else weight / divisor)
    return factors


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@settings(deadline=None, max_examples=cases(40))
@given(
    groups=ragged_groups(),
    weight=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
    bound=st.sampled_from([0.5, math.inf]),
)
def test_factors_agree_with_a_slow_reference(
    normalisation: str, groups: Rewards, weight: float, gamma: float, bound: float
) -> None:
    limit = None if bound == math.inf else bound
    balance = ProcessBalance(weight=weight, normalisation=normalisation, gamma=gamma, bound=limit)
    found = balance.observe(members(*groups))
    assert found == pytest.approx(reference_factors(groups, normalisation, weight, gamma, bound))
    assert all(math.isfinite(factor) for factor in found)


@settings(deadline=None, max_examples=cases(40))
@given(groups=ragged_groups())
def test_return_max_brings_every_return_to_go_between_minus_one_and_one(groups: Rewards) -> None:
    balance = ProcessBalance(normalisation="return_max")
    batch = members(*groups)
    factors = balance.observe(batch)
    togo = [
        number
        for group, factor in zip(batch, factors, strict=True)
        for trajectory in group
        for number in returns_to_go(balance.balanced(trajectory, factor), 1.0)
    ]
    earned = any(any(any(steps) for steps in group) for group in groups)
    assert max(map(abs, togo), default=0.0) == pytest.approx(1.0 if earned else 0.0)


# --- nothing to divide by ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@pytest.mark.parametrize(
    "groups",
    [
        pytest.param(([[0.0, 0.0], [0.0]],), id="nothing was earned"),
        pytest.param(([[0.0]],), id="one trajectory of one step"),
        pytest.param(([[], []],), id="no steps"),
        pytest.param(([],), id="no members"),
        pytest.param(([], [[0.0]], []), id="groups that all failed"),
    ],
)
def test_a_divisor_of_zero_is_one(normalisation: str, groups: tuple[list[list[float]], ...]) -> None:
    balance = ProcessBalance(weight=0.7, normalisation=normalisation)
    assert balance.observe(members(*groups)) == [0.7] * len(groups)


@pytest.mark.parametrize("normalisation", ["group_std", "running"])
def test_where_everyone_earned_the_same_nothing_is_divided(normalisation: str) -> None:
    balance = ProcessBalance(normalisation=normalisation)
    for _ in range(3):
        assert balance.observe(members([[0.1], [0.1], [0.1]])) == [1.0]


def test_sums_that_differ_by_rounding_alone_are_the_same() -> None:
    assert 0.1 + 0.2 != 0.3
    assert ProcessBalance(normalisation="group_std").observe(members([[0.1, 0.2], [0.3]])) == [1.0]


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_no_groups_have_no_factors(normalisation: str) -> None:
    assert ProcessBalance(normalisation=normalisation).observe([]) == []


# --- bound and weight ----------------------------------------------------------------------------------------------


def test_a_bound_cuts_single_rewards_on_both_sides() -> None:
    balance = ProcessBalance(bound=1.0)
    assert balance.balanced(member([5.0, -3.0, 0.2]), 1.0) == [1.0, -1.0, 0.2]
    assert ProcessBalance(bound=1.0, weight=2.0).observe(members([[5.0]])) == [2.0]


def test_a_bound_is_applied_before_anything_is_divided() -> None:
    groups = members([[5.0, 0.5], [-2.0]])
    # cut to (1, .5) and (-1,): returns-to-go 1.5, .5, -1; sums 1.5 and -1
    assert ProcessBalance(normalisation="return_max", bound=1.0).observe(groups) == pytest.approx([1 / 1.5])
    assert ProcessBalance(normalisation="group_std", bound=1.0).observe(groups) == pytest.approx([math.sqrt(2) / 2.5])
    running = ProcessBalance(normalisation="running", bound=1.0)
    assert running.observe(groups) == pytest.approx([1 / statistics.stdev([1.5, 0.5, -1.0])])


def test_one_outlier_shrinks_the_batch_under_return_max_unless_it_is_cut() -> None:
    groups = members([[0.1], [0.2]], [[100.0], [0.0]])
    free, cut = ProcessBalance(normalisation="return_max"), ProcessBalance(normalisation="return_max", bound=0.5)
    (small, _), (large, _) = free.observe(groups), cut.observe(groups)
    assert free.balanced(groups[0][1], small) == pytest.approx([0.002])
    assert cut.balanced(groups[0][1], large) == pytest.approx([0.4])
    assert cut.balanced(groups[1][0], large) == pytest.approx([1.0])


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_a_weight_of_zero_switches_process_rewards_off(normalisation: str) -> None:
    balance = ProcessBalance(weight=0.0, normalisation=normalisation)
    shaped = shape(balance, make_group(member([0.3, -0.2], 1.0), member([5.0], -1.0)))
    assert shaped.steps == ((0.0, 1.0), (-1.0,))
    assert shaped.metrics == {"reward/process_balanced": 0.0}


# --- the running spread --------------------------------------------------------------------------------------------


def test_the_running_spread_by_hand() -> None:
    spread = RunningSpread()
    assert spread.std == 0.0
    spread.add([1.0])
    assert spread.std == 0.0
    spread.add([3.0])
    assert spread.std == pytest.approx(math.sqrt(2))
    spread.add([])
    spread.add([2.0, 2.0])
    assert (spread.count, spread.mean, spread.squares) == (4.0, 2.0, 2.0)


@settings(deadline=None, max_examples=cases(40))
@given(st.lists(st.lists(st.floats(-1e3, 1e3), max_size=8), min_size=1, max_size=6))
def test_the_running_spread_is_that_of_all_numbers_at_once(batches: list[list[float]]) -> None:
    spread, seen = RunningSpread(), []
    for batch in batches:
        spread.add(batch)
        seen += batch
    assert spread.std == pytest.approx(statistics.stdev(seen) if len(seen) > 1 else 0.0, rel=1e-9, abs=1e-9)


def test_running_divides_by_the_spread_of_every_return_seen_so_far() -> None:
    balance, seen = ProcessBalance(normalisation="running", gamma=0.5), list[float]()
    for batch in ([[1.0, 2.0], [0.0]], [[-3.0]], [[0.5, 0.5, 0.5], [4.0, 0.0]]):
        factors = balance.observe(members(batch))
        seen += [number for rewards in batch for number in returns_to_go(rewards, 0.5)]
        assert factors == pytest.approx([1 / statistics.stdev(seen)])


def test_spread_far_from_zero_is_not_lost_to_rounding() -> None:
    balance, seen = ProcessBalance(normalisation="running"), list[float]()
    for start in range(5):
        batch = [1e6 + 0.01 * (start + index) for index in range(4)]
        seen += batch
        factors = balance.observe(members([[number] for number in batch]))
        assert factors == pytest.approx([1 / statistics.stdev(seen)], rel=1e-6)


def through_json(state: dict[str, float]) -> dict[str, float]:
    loaded: dict[str, float] = json.loads(json.dumps(state))
    return loaded


def through_torch(state: dict[str, float]) -> dict[str, float]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, float] = torch.load(file, weights_only=True)
    return loaded


@settings(deadline=None, max_examples=cases(30))
@given(before=ragged_groups(), after=ragged_groups())
def test_a_resumed_running_balance_goes_on_as_if_it_had_never_stopped(before: Rewards, after: Rewards) -> None:
    straight = ProcessBalance(normalisation="running", gamma=0.9)
    straight.observe(members(*before))
    saved = straight.state_dict()
    expected = straight.observe(members(*after))
    for travel in (through_json, through_torch):
        resumed = ProcessBalance(normalisation="running", gamma=0.9)
        resumed.load_state_dict(travel(saved))
        assert resumed.state_dict() == saved
        assert resumed.observe(members(*after)) == expected
        assert resumed.state_dict() == straight.state_dict()


def test_a_saved_state_does_not_move_with_the_balance_it_came_from() -> None:
    balance = ProcessBalance(normalisation="running")
    saved = balance.state_dict()
    balance.observe(members([[1.0], [2.0]]))
    assert saved == {"count": 0.0, "mean": 0.0, "squares": 0.0}


# --- the over-long penalty -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_tokens", "penalty"),
    [(0, 0.0), (79, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (100, -1.0), (130, -1.0)],
)
def test_the_overlong_penalty_by_hand(num_tokens: int, penalty: float) -> None:
    assert overlong_penalty(num_tokens, max_tokens=100, fraction=0.2) == pytest.approx(penalty)


def test_a_fraction_of_zero_never_charges_and_one_charges_from_the_first_token() -> None:
    assert overlong_penalty(1000, max_tokens=100, fraction=0.0) == 0.0
    assert [overlong_penalty(size, max_tokens=100, fraction=1.0) for size in (0, 25, 100)] == [0.0, -0.25, -1.0]


def test_a_long_action_is_charged_on_its_own_step() -> None:
    group = make_group(member([0.1, 0.0, 0.2], 1.0, lengths=[90, 100, 10]))
    shaped = shape(ProcessBalance(), group, overlong_fraction=0.2)
    assert shaped.steps[0] == pytest.approx((-0.4, -1.0, 1.2))


# --- the parts together --------------------------------------------------------------------------------------------


def test_process_rewards_stay_on_their_steps_and_the_outcome_comes_once_on_the_last() -> None:
    shaped = shape(ProcessBalance(weight=0.5), make_group(member([0.1, 0.1, 0.0], 1.0)))
    assert shaped.steps[0] == pytest.approx((0.05, 0.05, 1.0))


def test_a_single_step_earns_its_process_reward_and_the_outcome() -> None:
    assert shape(ProcessBalance(), make_group(member([0.25], 1.0))).steps == ((1.25,),)


def test_trajectories_come_group_after_group_each_with_its_own_scale() -> None:
    groups = (make_group(member([1.0], 5.0), member([3.0])), make_group(member([2.0, 4.0]), member([0.0]), group_id=7))
    shaped = shape(ProcessBalance(normalisation="group_std"), *groups)
    # spreads of (1, 3) and (6, 0): 2 / sqrt 2 and 6 / sqrt 2
    first, second = 1 / math.sqrt(2), math.sqrt(2) / 6
    assert [number for steps in shaped.steps for number in steps] == pytest.approx(
        [first + 5.0, 3 * first, 2 * second, 4 * second, 0.0]
    )
    assert [len(steps) for steps in shaped.steps] == [1, 1, 2, 1]


@settings(deadline=None, max_examples=cases(30))
@given(groups=ragged_groups(), normalisation=st.sampled_from(NORMALISATIONS), outcome=st.sampled_from([-1.0, 0.0, 2.0]))
def test_a_trajectory_earns_its_balanced_sum_and_its_outcome_and_nothing_else(
    groups: Rewards, normalisation: str, outcome: float
) -> None:
    batch = [
        make_group(*(member(steps, outcome) for steps in group), group_id=index) for index, group in enumerate(groups)
    ]
    shaped = shape(ProcessBalance(weight=0.5, normalisation=normalisation), *batch)
    acting = [[steps for steps in group if steps] for group in groups]
    factors = reference_factors(acting, normalisation, 0.5, 1.0, math.inf)
    earned = [factor * sum(steps) for group, factor in zip(acting, factors, strict=True) for steps in group]
    assert [sum(steps) for steps in shaped.steps] == pytest.approx([number + outcome for number in earned], abs=1e-9)
    mean = statistics.fmean(earned) if earned else 0.0
    assert shaped.metrics == {"reward/process_balanced": pytest.approx(mean, abs=1e-9)}


FAILURES = [reason for reason in StopReason if reason.is_failure]


@pytest.mark.parametrize("reason", FAILURES)
@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_failed_members_are_in_no_statistic(normalisation: str, reason: StopReason) -> None:
    good = (member([0.1, 0.3], 1.0), member([-0.2]))
    alone, beside = ProcessBalance(normalisation=normalisation), ProcessBalance(normalisation=normalisation)
    failed = member([1e6, 1e6], 0.0, stop_reason=reason)
    assert shape(beside, make_group(failed, *good)) == shape(alone, make_group(*good))
    assert beside.state_dict() == alone.state_dict()


@pytest.mark.parametrize("reason", [reason for reason in StopReason if reason.is_truncation])
def test_truncated_members_count(reason: StopReason) -> None:
    shaped = shape(
        ProcessBalance(normalisation="return_max"), make_group(member([0.5]), member([2.0], stop_reason=reason))
    )
    assert shaped.steps == ((0.25,), (1.0,))


def test_a_batch_in_which_everything_failed_earns_nothing() -> None:
    failed = member([1.0], 1.0, stop_reason=StopReason.ENV_ERROR)
    for groups in ((), (make_group(),), (make_group(failed, greedy=failed),)):
        shaped = shape(ProcessBalance(normalisation="running"), *groups, overlong_fraction=0.2)
        assert shaped.steps == ()
        assert shaped.greedy_returns == {}
        assert shaped.metrics == {"reward/process_balanced": 0.0, "reward/overlong": 0.0}


def test_the_parts_are_reported_apart_as_means_over_trajectories() -> None:
    group = make_group(
        member([0.2, 0.4], 1.0, lengths=[90, 100]), member([-0.4], 0.0), member([9.0], stop_reason=StopReason.TIMEOUT)
    )
    balance = ProcessBalance(weight=0.5)
    assert shape(balance, group, overlong_fraction=0.2).metrics == {
        "reward/process_balanced": pytest.approx((0.3 - 0.2) / 2),
        "reward/overlong": pytest.approx(-1.5 / 2),
    }
    assert set(shape(balance, group).metrics) == {"reward/process_balanced"}


# --- greedy rollouts -----------------------------------------------------------------------------------------------


def test_a_greedy_rollout_is_measured_with_its_groups_scale() -> None:
    groups = (
        make_group(member([0.1, 0.1]), member([0.0]), greedy=member([0.1, 0.3], 1.0)),
        make_group(member([2.0]), member([0.0]), group_id=4, greedy=member([1.0])),
    )
    shaped = shape(ProcessBalance(weight=0.5, normalisation="group_std"), *groups)
    # spreads .2 / sqrt 2 and 2 / sqrt 2
    assert shaped.greedy_returns == pytest.approx(
        {0: 0.5 * 0.4 * math.sqrt(2) / 0.2 + 1.0, 4: 0.5 * 1.0 * math.sqrt(2) / 2}
    )


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_a_greedy_rollout_is_in_no_statistic(normalisation: str) -> None:
    sampled = (member([0.1, 0.3], 1.0), member([-0.2]))
    with_greedy, without = ProcessBalance(normalisation=normalisation), ProcessBalance(normalisation=normalisation)
    found = shape(with_greedy, make_group(*sampled, greedy=member([1e6], lengths=[100])), overlong_fraction=0.2)
    expected = shape(without, make_group(*sampled), overlong_fraction=0.2)
    assert found.steps == expected.steps
    assert found.metrics == expected.metrics
    assert with_greedy.state_dict() == without.state_dict()


def test_a_greedy_rollout_is_charged_for_its_length_and_cut_like_the_others() -> None:
    group = make_group(member([0.5]), greedy=member([5.0, 0.0], 2.0, lengths=[90, 10]))
    assert shape(ProcessBalance(bound=1.0), group, overlong_fraction=0.2).greedy_returns == {0: 1.0 - 0.5 + 2.0}


@pytest.mark.parametrize("reason", FAILURES)
def test_failed_and_missing_greedy_rollouts_are_absent(reason: StopReason) -> None:
    groups = (
        make_group(member([0.0], 1.0), group_id=0, greedy=member([0.0], stop_reason=reason)),
        make_group(member([0.0], 1.0), group_id=1),
        make_group(member([0.0], 1.0), group_id=2, greedy=member([0.0], 0.0)),
        make_group(member([0.0], 1.0), group_id=3, greedy=member([0.0], 0.5, stop_reason=StopReason.MAX_STEPS)),
    )
    assert shape(ProcessBalance(), *groups).greedy_returns == {2: 0.0, 3: 0.5}


@pytest.mark.parametrize(
    ("normalisation", "divisor"), [("return_max", 0.5), ("running", statistics.stdev([0.5] * 4 + [0.0]))]
)
def test_a_return_to_go_is_that_of_a_branch(normalisation: str, divisor: float) -> None:
    """Four sub-agents beside one another, each of which earns 0.5, and one that earns nothing: no return-to-go is more
    than 0.5. One after the other they would be 2."""
    steps = tuple(replace(make_step(reward), parent=-1) for reward in [0.5] * 4 + [0.0])
    beside = replace(member([]), steps=steps)
    [factor] = ProcessBalance(normalisation=normalisation).observe([[beside]])
    assert 1 / factor == pytest.approx(divisor)
    forked = replace(beside, steps=(make_step(1.0), *(replace(step, parent=0) for step in steps[1:])))
    assert forked.parents == (-1, 0, 0, 0, 0)
    assert returns_to_go([step.reward for step in forked.steps], 0.5, forked.parents)[0] == pytest.approx(1.1875)
