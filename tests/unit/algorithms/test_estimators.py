"""Advantage estimators: numbers by hand, and slow references that fast code has to agree with.

Here the table, the scans, GAE and the estimators without a group; `test_group_estimators` has those that compare the
members of one. Shape letters as in `agent_r1.algorithms.table`: `_N` action tokens, `_S` steps, `_R` trajectories.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_r1.algorithms import (
    Credit,
    LossInputs,
    StepTable,
    TokenLosses,
    estimators,
    policy_losses,
    reverse_scan,
    whiten,
)
from agent_r1.algorithms.algorithm import bind_algorithm
from agent_r1.algorithms.estimators import Estimator, greedy_baseline, return_to_go, step_gae, token_gae, token_return
from agent_r1.algorithms.scan import next_in_segment
from agent_r1.config import AlgorithmConfig
from agent_r1.errors import ConfigError, UnknownNameError
from agent_r1.registry import Part, bind_part
from agent_r1.types import Observation
from tests.helpers.fuzzing import cases
from tests.helpers.ragged import (
    DEGENERATE,
    PerStep,
    Ragged,
    assert_close,
    assert_credit,
    batches,
    charged,
    discounts,
    eighths,
    reference_togo,
    reference_token_rewards,
    reference_whiten,
    table_of,
    trajectories,
)

ESTIMATORS = [
    "gigpo",
    "greedy_baseline",
    "group",
    "group_whitened",
    "leave_one_out",
    "return_to_go",
    "step_gae",
    "step_group",
    "token_gae",
    "token_return",
]

# --- slow references -----------------------------------------------------------------------------------------------


def reference_gae(
    rewards: list[float], values: list[float], after_last: float, gamma: float, lam: float
) -> list[float]:
    """Backwards through one trajectory's time, whatever its time is."""
    advantages = [0.0] * len(rewards)
    next_value, carried = after_last, 0.0
    for t in range(len(rewards) - 1, -1, -1):
        carried = rewards[t] + gamma * next_value - values[t] + gamma * lam * carried
        advantages[t], next_value = carried, values[t]
    return advantages


def reference_step_gae(batch: list[Ragged], gamma: float, lam: float) -> tuple[list[float], list[float]]:
    """Whitened advantage of each token and target of each token, from steps."""
    per_step: list[tuple[float, float, int]] = []
    for t in batch:
        starts = [sum(t.lengths[:s]) for s in range(len(t.lengths))]
        before = t.values or [0.0] * t.num_tokens
        after = t.bootstrap
        # A step without tokens is worth what comes next.
        values = [before[start] if start < t.num_tokens else after for start in starts]
        advantages = reference_gae(t.rewards, values, after, gamma, lam)
        per_step += [(a, a + v, n) for a, v, n in zip(advantages, values, t.lengths, strict=True)]
    white = iter(reference_whiten([a for a, _, n in per_step if n]))
    advantages_N, targets_N = [], []
    for _, target, length in per_step:
        if length:
            advantages_N += [next(white)] * length
            targets_N += [target] * length
    return advantages_N, targets_N


def reference_token_gae(batch: list[Ragged], gamma: float, lam: float) -> tuple[list[float], list[float]]:
    """Whitened advantage and target of each token."""
    plain, targets = [], []
    for t in batch:
        values = t.values or []
        after = t.bootstrap
        advantages = reference_gae(reference_token_rewards(t), values, after, gamma, lam)
        plain += advantages
        targets += [a + v for a, v in zip(advantages, values, strict=True)]
    return reference_whiten(plain), targets


def reference_return_to_go(batch: list[Ragged], gamma: float) -> PerStep:
    return [list(reference_togo(t.rewards, gamma)) for t in batch]


def reference_token_return(batch: list[Ragged], gamma: float) -> list[float]:
    """The return from each token on, whitened over the tokens of all trajectories."""
    return reference_whiten([g for t in batch for g in reference_togo(reference_token_rewards(t), gamma)])


def reference_greedy_baseline(batch: list[Ragged]) -> PerStep:
    return [[None if math.isnan(t.greedy) else sum(t.rewards) - t.greedy] * len(t.rewards) for t in batch]


@settings(deadline=None, max_examples=cases(30))
@given(batches(with_values=True), discounts, discounts)
def test_step_gae_agrees_with_the_reference(batch: list[Ragged], gamma: float, lam: float) -> None:
    credit = step_gae(table_of(batch), gamma=gamma, lam=lam)
    advantages, targets = reference_step_gae(batch, gamma, lam)
    assert credit.returns_N is not None
    assert credit.credited_N.all()
    assert_close(credit.advantages_N, advantages, 1e-6)
    assert_close(credit.returns_N, targets)


@settings(deadline=None, max_examples=cases(30))
@given(batches(with_values=True), discounts, discounts)
def test_token_gae_agrees_with_the_reference(batch: list[Ragged], gamma: float, lam: float) -> None:
    credit = token_gae(table_of(batch), gamma=gamma, lam=lam)
    advantages, targets = reference_token_gae(batch, gamma, lam)
    assert credit.returns_N is not None
    assert credit.credited_N.all()
    assert_close(credit.advantages_N, advantages, 1e-6)
    assert_close(credit.returns_N, targets)


@pytest.mark.whole
@settings(deadline=None, max_examples=cases(30))
@given(batches(), discounts)
def test_return_to_go_agrees_with_the_reference(batch: list[Ragged], gamma: float) -> None:
    credit = return_to_go(table_of(batch), gamma=gamma)
    assert_credit(credit, batch, reference_return_to_go(batch, gamma))


@settings(deadline=None, max_examples=cases(30))
@given(batches(), discounts)
def test_token_return_agrees_with_the_reference(batch: list[Ragged], gamma: float) -> None:
    credit = token_return(table_of(batch), gamma=gamma)
    assert_close(credit.advantages_N, reference_token_return(batch, gamma), 1e-6)
    assert credit.credited_N.all()


@settings(deadline=None, max_examples=cases(30))
@given(batches())
def test_greedy_baseline_agrees_with_the_reference(batch: list[Ragged]) -> None:
    assert_credit(greedy_baseline(table_of(batch)), batch, reference_greedy_baseline(batch))


# --- GAE by hand ---------------------------------------------------------------------------------------------------


def test_step_gae_by_hand() -> None:
    # Values before the steps: .5 and .25 (the 9 stands before the first step's second token and is not a step value).
    # delta_1 = 1 - .25 = .75; delta_0 = 0 + .9 * .25 - .5 = -.275; A_0 = -.275 + .45 * .75 = .0625.
    batch = [Ragged([0.0, 1.0], [2, 1], values=[0.5, 9.0, 0.25])]
    credit = step_gae(table_of(batch), gamma=0.9, lam=0.5, whitened=False)
    assert_close(credit.advantages_N, [0.0625, 0.0625, 0.75])
    assert credit.returns_N is not None
    assert_close(credit.returns_N, [0.5625, 0.5625, 1.0])
    assert credit.valued_N is not None
    assert credit.valued_N.tolist() == [True, False, True]


def test_token_gae_by_hand_crosses_steps() -> None:
    # Token rewards 0, .1 | 1. delta = 0 + .36 - .5, .1 + .18 - .4, 1 - .2 = -.14, -.12, .8.
    # A_2 = .8; A_1 = -.12 + .45 * .8 = .24, although a step ends in between; A_0 = -.14 + .45 * .24 = -.032.
    batch = [Ragged([0.1, 1.0], [2, 1], values=[0.5, 0.4, 0.2])]
    credit = token_gae(table_of(batch), gamma=0.9, lam=0.5, whitened=False)
    assert_close(credit.advantages_N, [-0.032, 0.24, 0.8])
    assert credit.returns_N is not None
    assert_close(credit.returns_N, [0.468, 0.64, 1.0])
    assert credit.valued_N is not None
    assert credit.valued_N.all()


@pytest.mark.parametrize("estimate", [step_gae, token_gae])
def test_gae_does_not_cross_trajectories(estimate: Estimator) -> None:
    apart = [Ragged([0.0, 0.5], [1, 1], values=[0.5, 0.4]), Ragged([8.0], [2], values=[0.3, 0.1])]
    together = estimate(table_of(apart), whitened=False).advantages_N
    alone = estimate(table_of(apart[:1]), whitened=False).advantages_N
    assert_close(together[:2], alone.tolist())


@pytest.mark.parametrize(("bootstrap", "expected"), [(0.0, [0.0625, 0.75]), (2.0, [0.8725, 2.55])])
def test_a_bootstrap_follows_the_last_step_in_step_gae(bootstrap: float, expected: list[float]) -> None:
    # Truncated: delta_1 = 1 + .9 * 2 - .25 = 2.55; A_0 = -.275 + .45 * 2.55 = .8725.
    batch = [Ragged([0.0, 1.0], [1, 1], values=[0.5, 0.25], bootstrap=bootstrap)]
    assert_close(step_gae(table_of(batch), gamma=0.9, lam=0.5, whitened=False).advantages_N, expected)


@pytest.mark.parametrize(("bootstrap", "expected"), [(0.0, [-0.05, 0.8]), (2.0, [0.76, 2.6])])
def test_a_bootstrap_follows_the_last_token_in_token_gae(bootstrap: float, expected: list[float]) -> None:
    # Terminated: A_1 = 1 - .2 = .8; A_0 = .9 * .2 - .59 + .45 * .8 = -.05. Truncated: A_1 = .8 + .9 * 2 = 2.6.
    batch = [Ragged([1.0], [2], values=[0.59, 0.2], bootstrap=bootstrap)]
    assert_close(token_gae(table_of(batch), gamma=0.9, lam=0.5, whitened=False).advantages_N, expected)


def test_gae_with_lambda_one_and_no_values_is_the_return_to_go() -> None:
    batch = [Ragged([1.0, 2.0, 4.0], [1, 1, 1])]
    assert_close(step_gae(table_of(batch), gamma=0.5, lam=1.0, whitened=False).advantages_N, [3.0, 4.0, 4.0])


def test_step_gae_whitens_over_steps_not_tokens() -> None:
    # Step advantages 0 and 2: whitened -.7071 and .7071, although the first step has three tokens.
    batch = [Ragged([0.0], [3]), Ragged([2.0], [1])]
    credit = step_gae(table_of(batch))
    assert_close(credit.advantages_N, [-0.70710678] * 3 + [0.70710678], 1e-7)


def test_token_gae_whitens_over_tokens() -> None:
    # Token advantages 0, 0, 0, 2: mean .5, variance (3 * .25 + 2.25) / 3 = 1.
    batch = [Ragged([0.0], [3]), Ragged([2.0], [1])]
    assert_close(token_gae(table_of(batch)).advantages_N, [-0.5] * 3 + [1.5], 1e-7)


def test_the_critics_targets_are_not_whitened() -> None:
    table = table_of([Ragged([0.0, 1.0], [2, 1], values=[0.5, 0.2, 0.25]), Ragged([3.0], [1], values=[1.0])])
    for estimate in (step_gae, token_gae):
        plain, white = estimate(table, whitened=False).returns_N, estimate(table, whitened=True).returns_N
        assert plain is not None
        assert white is not None
        assert_close(white, plain.tolist())


@pytest.mark.parametrize("name", ["step_gae", "token_gae"])
def test_an_estimator_that_needs_values_says_so(name: str) -> None:
    with pytest.raises(ValueError, match="needs a critic"):
        estimators.get(name)(replace(table_of([Ragged([1.0], [1])]), values_N=None))


# --- returns by hand -----------------------------------------------------------------------------------------------


def test_return_to_go_by_hand() -> None:
    # First trajectory, gamma .5, once a step: .25 + .5 * (.5 + .5 * 1) = .75, .5 + .5 * 1 = 1, 1. Its second step has
    # no token. The second trajectory keeps to itself.
    batch = [Ragged([0.25, 0.5, 1.0], [2, 0, 1]), Ragged([-1.0, 2.0], [1, 3], bootstrap=9.0)]
    credit = return_to_go(table_of(batch), gamma=0.5)
    assert_close(credit.advantages_N, [0.75, 0.75, 1.0, 0.0, 2.0, 2.0, 2.0])
    assert credit.credited_N.all()
    assert credit.returns_N is None
    assert credit.valued_N is None


def test_return_to_go_counts_what_tokens_were_charged() -> None:
    # The second step earned 1 and lost .25 + .25.
    batch = [charged([0.0, 1.0], [1, 2], [0.0, -0.25, -0.25])]
    assert_close(return_to_go(table_of(batch)).advantages_N, [0.5, 0.5, 0.5])


def test_token_return_by_hand() -> None:
    # Token rewards 0, .1 | 1, gamma .5 once a token: 1; .1 + .5 * 1 = .6; .5 * .6 = .3. The return goes on from the
    # second step's token to the first step's last: what stood in between is not there for it.
    batch = [Ragged([0.1, 1.0], [2, 1]), Ragged([-1.0], [2])]
    credit = token_return(table_of(batch), gamma=0.5, whitened=False)
    assert_close(credit.advantages_N, [0.3, 0.6, 1.0, -0.5, -1.0])
    assert credit.credited_N.all()
    assert credit.returns_N is None


def test_token_return_does_not_start_again_at_a_step() -> None:
    # However 5 tokens are cut into steps, with the reward at the end each has the same return.
    cuts: list[list[int]] = [[5], [2, 3], [1, 0, 3, 1], [0, 1, 1, 1, 1, 1]]
    for lengths in cuts:
        batch = [Ragged([0.0] * (len(lengths) - 1) + [1.0], lengths)]
        credit = token_return(table_of(batch), gamma=0.5, whitened=False)
        assert_close(credit.advantages_N, [0.0625, 0.125, 0.25, 0.5, 1.0])


def test_token_return_charges_a_token_and_those_before_it() -> None:
    # The step earned 1; its tokens were charged 0, .5, 0: from the back 1, .5, .5.
    batch = [charged([1.0], [3], [0.0, -0.5, 0.0])]
    assert_close(token_return(table_of(batch), whitened=False).advantages_N, [0.5, 0.5, 1.0])


def test_token_return_whitens_over_all_tokens_of_the_batch() -> None:
    # Returns 2, 2, 2 | 0 in two groups: mean 1.5, variance (3 * .25 + 2.25) / 3 = 1. A long trajectory weighs more.
    batch = [Ragged([0.0, 2.0], [2, 1], group=0), Ragged([0.0], [1], group=1)]
    assert_close(token_return(table_of(batch)).advantages_N, [0.5, 0.5, 0.5, -1.5], 1e-7)


def test_greedy_baseline_by_hand() -> None:
    # Returns .25 + .5 = .75 and -1 against a greedy .5: .25 and -1.5. The other task's greedy rollout earned 1.
    batch = [
        Ragged([0.25, 0.5], [1, 2], greedy=0.5),
        Ragged([1.0], [1], group=7, greedy=1.0),
        Ragged([-1.0], [2], greedy=0.5),
    ]
    credit = greedy_baseline(table_of(batch))
    assert_close(credit.advantages_N, [0.25, 0.25, 0.25, 0.0, -1.5, -1.5])
    assert credit.credited_N.all()


def test_a_task_without_a_greedy_rollout_has_no_credit() -> None:
    batch = [Ragged([1.0], [2], greedy=math.nan), Ragged([1.0], [1], group=1, greedy=0.5)]
    assert_credit(greedy_baseline(table_of(batch)), batch, [[None], [0.5]])


def test_a_batch_without_greedy_rollouts_is_refused() -> None:
    table = replace(table_of([Ragged([1.0], [1])]), greedy_returns_R=None)
    with pytest.raises(ValueError, match=r"needs a greedy rollout of each task.*group_plan=with_greedy"):
        greedy_baseline(table)


@pytest.mark.parametrize("name", ["return_to_go", "token_return", "greedy_baseline", "step_gae", "token_gae"])
def test_members_that_all_earned_the_same_keep_their_credit_where_they_are_not_compared(name: str) -> None:
    # The baseline is not the group, so the group's want of spread says nothing.
    credit: Credit = estimators.get(name)(table_of([Ragged([1.0], [2]), Ragged([0.0, 1.0], [1, 1])]))
    assert credit.credited_N.all()


# --- names and arguments -------------------------------------------------------------------------------------------


def test_every_estimator_has_a_name() -> None:
    assert set(ESTIMATORS) <= set(estimators.names())


def test_an_unknown_estimator_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="'step_gae'"):
        estimators.get("step_gea")


@pytest.fixture
def scaled_return(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a user's estimator, registered for one test."""
    monkeypatch.setattr(estimators, "_entries", dict(estimators._entries))

    @estimators.register("scaled_return")
    def scaled_return(table: StepTable, *, scale: float = 1.0) -> Credit:
        return Credit.of_trajectories(table, scale * table.returns_R, table.returns_R > 0)

    return "scaled_return"


def test_a_users_estimator_needs_one_registered_function(scaled_return: str) -> None:
    batch = [Ragged([0.5, 1.0], [2, 1]), Ragged([-1.0], [2])]
    part = {"name": scaled_return, "scale": 3.0}
    bound = bind_part(estimators, "algorithm.estimator", part)
    assert_credit(bound(table_of(batch)), batch, [[4.5, 4.5], [None]])
    algorithm = bind_algorithm(AlgorithmConfig(estimator=part))
    assert_credit(algorithm.estimate(table_of(batch)), batch, [[4.5, 4.5], [None]])


def test_an_argument_a_users_estimator_does_not_take_is_refused(scaled_return: str) -> None:
    with pytest.raises(ConfigError, match="'scale'"):
        bind_algorithm(AlgorithmConfig(estimator={"name": scaled_return, "scael": 3.0}))


# --- no NaN, whatever comes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", DEGENERATE)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_degenerate_batches_give_finite_credit(name: str, case: str) -> None:
    table = table_of(DEGENERATE[case])
    credit: Credit = estimators.get(name)(table)
    assert len(credit.advantages_N) == len(credit.credited_N) == table.num_tokens
    assert credit.credited_N.dtype is torch.bool
    assert torch.isfinite(credit.advantages_N).all()
    if credit.returns_N is not None:
        assert torch.isfinite(credit.returns_N).all()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_leave_the_table_as_it_was(name: str) -> None:
    batch = [charged([0.5, 1.0], [2, 1], [-0.5, -0.25, 0.0]), charged([0.0], [2], [0.0, -0.125])]
    table, same = table_of(batch), table_of(batch)
    estimators.get(name)(table)
    for field in ("rewards_S", "lengths_S", "token_rewards_N", "values_N", "greedy_returns_R"):
        assert torch.equal(getattr(table, field), getattr(same, field))


def test_whiten_gives_mean_zero_and_unit_deviation() -> None:
    assert_close(whiten(torch.tensor([1.0, 3.0]).double()), [-0.70710678, 0.70710678], 1e-6)


def test_whiten_of_one_value_is_zero() -> None:
    assert whiten(torch.tensor([5.0])).tolist() == [0.0]


def test_whiten_of_nothing_is_nothing() -> None:
    assert whiten(torch.tensor([])).tolist() == []


def test_whiten_of_equal_values_is_zero() -> None:
    assert_close(whiten(torch.full((7,), 0.3).double()), [0.0] * 7, 1e-7)


@pytest.mark.parametrize("value", [0.3, 3e8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_rounding_leaves_of_equal_values_is_not_whitened(value: float, dtype: torch.dtype) -> None:
    assert whiten(torch.full((7,), value, dtype=dtype)).tolist() == [0.0] * 7


# --- tables at token granularity -----------------------------------------------------------------------------------


def test_a_steps_reward_falls_on_its_last_token() -> None:
    tokens = table_of([Ragged([0.1, 1.0], [2, 1]), Ragged([0.0], [3])]).per_token()
    assert_close(tokens.rewards_S, [0.0, 0.1, 1.0, 0.0, 0.0, 0.0])
    assert tokens.lengths_S.tolist() == [1] * 6
    assert tokens.trajectory_S.tolist() == [0, 0, 0, 1, 1, 1]


def test_an_empty_steps_reward_falls_on_its_neighbour_in_the_same_trajectory() -> None:
    first = Ragged([0.5, 0.25, 1.0], [0, 2, 0])  # before: on the token after it; after: on the token before it
    second = Ragged([2.0, 4.0], [0, 1])
    tokens = table_of([first, second]).per_token()
    assert_close(tokens.rewards_S, [0.5, 1.25, 6.0])


def test_the_reward_of_a_trajectory_without_tokens_falls_on_no_other() -> None:
    tokens = table_of([Ragged([8.0], [0]), Ragged([0.5], [2]), Ragged([8.0], [0])]).per_token()
    assert_close(tokens.rewards_S, [0.0, 0.5])


def test_token_rewards_stay_on_their_tokens() -> None:
    # The step earned 1 and lost .1 + .3 to a penalty: .6 in all, of which the last token keeps 1 - .3.
    batch = [Ragged([0.6], [2], token_rewards=[-0.1, -0.3])]
    assert_close(table_of(batch).per_token().rewards_S, [-0.1, 0.7])


def test_task_rewards_leave_out_what_tokens_were_charged() -> None:
    table = table_of([charged([0.5, 1.0], [2, 1], [-0.25, -0.5, -0.125]), charged([0.0], [1], [-4.0])])
    assert_close(table.rewards_S, [-0.25, 0.875, -4.0])
    assert_close(table.task_rewards_S, [0.5, 1.0, 0.0])
    assert_close(table.task_returns_R, [1.5, 0.0])


def test_returns_to_go_by_hand() -> None:
    """Discounted once per step; a value after the last step follows the last reward."""
    batch = [Ragged([0.1, 1.0], [2, 1]), Ragged([0.0], [3], bootstrap=4.0), Ragged([2.0, 0.0], [0, 0])]
    assert table_of(batch).returns_to_go(0.5).tolist() == pytest.approx([0.6, 1.0, 2.0, 2.0, 0.0])


def test_steps_are_counted_from_the_start_of_their_trajectory() -> None:
    table = table_of([Ragged([0.0] * 3, [1, 0, 2]), Ragged([0.0], [1]), Ragged([0.0] * 2, [0, 0])])
    assert table.step_index_S.tolist() == [0, 1, 2, 0, 0, 1]


@settings(deadline=None, max_examples=cases(30))
@given(st.lists(trajectories(with_token_rewards=True), min_size=1, max_size=6))
def test_rewards_per_token_sum_to_the_rewards_of_their_trajectory(batch: list[Ragged]) -> None:
    table = table_of(batch)
    per_token_R = table.per_token().returns_R
    expected = [sum(t.rewards) if t.num_tokens else 0.0 for t in batch]
    assert_close(per_token_R, expected)


# --- scans ---------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=cases(30))
@given(st.lists(st.lists(eighths, min_size=1, max_size=20), max_size=6), discounts)
def test_reverse_scan_agrees_with_a_loop(segments: list[list[float]], decay: float) -> None:
    expected: list[float] = []
    for segment in segments:
        carried, backwards = 0.0, []
        for number in reversed(segment):
            carried = number + decay * carried
            backwards.append(carried)
        expected += reversed(backwards)
    flat = torch.tensor([number for segment in segments for number in segment], dtype=torch.float64)
    owners = torch.tensor([i for i, segment in enumerate(segments) for _ in segment], dtype=torch.long)
    assert_close(reverse_scan(flat, decay, owners), expected)


def test_reverse_scan_leaves_its_input_as_it_was() -> None:
    inputs = torch.tensor([1.0, 2.0])
    reverse_scan(inputs, 0.5, torch.tensor([0, 0]))
    assert inputs.tolist() == [1.0, 2.0]


def test_reverse_scan_keeps_an_infinite_segment_to_itself() -> None:
    scanned = reverse_scan(torch.tensor([1.0, 1.0, math.inf]), 0.5, torch.tensor([0, 0, 1]))
    assert scanned.tolist() == [1.5, 1.0, math.inf]


def test_next_in_segment_by_hand() -> None:
    values, segments = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 0, 1])
    assert next_in_segment(values, segments, torch.tensor([7.0, 8.0, 9.0])).tolist() == [2.0, 8.0, 9.0]


# --- speed ---------------------------------------------------------------------------------------------------------

NUM_TRAJECTORIES, NUM_STEPS, NUM_TOKENS = 4096, 8, 64


@pytest.fixture(scope="module")
def large_table() -> StepTable:
    """Two million action tokens; the members of a group of 8 earn 1 in all, 2 in all, ... 8 in all."""
    total = NUM_TRAJECTORIES * NUM_STEPS
    member_R = torch.arange(NUM_TRAJECTORIES) % 8
    rewards = (torch.arange(NUM_STEPS) <= member_R[:, None]).double()
    states = tuple(Observation(text="", anchor=f"state {t}") for t in range(NUM_STEPS))
    return StepTable(
        rewards_S=rewards.flatten(),
        lengths_S=torch.full((total,), NUM_TOKENS),
        trajectory_S=torch.arange(NUM_TRAJECTORIES).repeat_interleave(NUM_STEPS),
        group_R=torch.arange(NUM_TRAJECTORIES) // 8,
        token_rewards_N=torch.zeros(total * NUM_TOKENS, dtype=torch.float64),
        values_N=torch.zeros(total * NUM_TOKENS, dtype=torch.float64),
        bootstrap_R=torch.zeros(NUM_TRAJECTORIES, dtype=torch.float64),
        greedy_returns_R=torch.zeros(NUM_TRAJECTORIES, dtype=torch.float64),
        observations_S=states * NUM_TRAJECTORIES,
    )


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.whole
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_two_million_tokens_take_less_than_three_seconds(name: str, large_table: StepTable) -> None:
    seconds = []
    for _ in range(2):
        started = time.process_time()  # others may be using the machine
        credit: Credit = estimators.get(name)(large_table)
        seconds.append(time.process_time() - started)
        assert credit.credited_N.all()
        if seconds[-1] < 1.0:
            break
    assert min(seconds) < 3.0
    # The last member of each group earned most, the first least.
    assert credit.advantages_N[7 * NUM_STEPS * NUM_TOKENS] > credit.advantages_N[0]


@pytest.mark.parametrize(
    ("estimate", "message"),
    [
        (lambda table: None, "it returned a NoneType; return Credit.of_trajectories"),
        (lambda table: table.returns_R, "it returned a Tensor; return Credit.of_trajectories"),
        (
            lambda table: Credit(advantages_N=table.returns_R, credited_N=table.returns_R > 0),
            r"Credit.advantages_N has the shape \(2,\); it must have one number per action token, here \(6,\)",
        ),
        (
            lambda table: Credit(advantages_N=torch.zeros(6).numpy(), credited_N=torch.ones(6, dtype=torch.bool)),
            "Credit.advantages_N is a ndarray; it must be a tensor",
        ),
        (
            lambda table: Credit(advantages_N=torch.zeros(6), credited_N=torch.ones(6)),
            "Credit.credited_N has the type torch.float32; it must be torch.bool",
        ),
        (
            lambda table: Credit.of_trajectories(table, table.returns_R / 0, table.returns_R == table.returns_R),
            r"Credit.advantages_N is \[inf, inf, inf, nan, nan, nan\]; every token in credited_N needs a finite number",
        ),
        (
            lambda table: Credit.of_steps(table, table.returns_R, table.returns_R > 0),
            r"IndexError index 2 is out of bounds .* \(test_estimators.py, line \d+\)",
        ),
        (lambda table: {}["mean"], r"KeyError 'mean' \(test_estimators.py, line \d+\)"),
    ],
)
def test_an_estimator_that_gives_no_credit_is_named_before_a_run(
    monkeypatch: pytest.MonkeyPatch, estimate: Any, message: str
) -> None:
    monkeypatch.setattr(estimators, "_entries", dict(estimators._entries))
    estimators.add("wrong_estimator_of_a_test", estimate, replaceable=True)
    with pytest.raises(ConfigError, match=f"algorithm.estimator=.*does not work: {message}"):
        bind_algorithm(AlgorithmConfig(estimator=Part("wrong_estimator_of_a_test")))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda inputs: None, "it returned a NoneType; return TokenLosses"),
        (lambda inputs: inputs.policy_logprobs_N, "it returned a Tensor; return TokenLosses"),
        (
            lambda inputs: TokenLosses(loss_N=-inputs.policy_logprobs_N.mean()),
            r"TokenLosses.loss_N has the shape \(\); it must have one number per action token, here \(6,\)",
        ),
        (
            lambda inputs: TokenLosses(loss_N=inputs.policy_logprobs_N.sqrt()),
            r"TokenLosses.loss_N is \[nan, .*\]; every token needs a finite number",
        ),
        (
            lambda inputs: TokenLosses(loss_N=-inputs.advantages_N * inputs.old_logprobs_N),
            "TokenLosses.loss_N has no gradient, so it would train nothing; compute it from inputs.policy_logprobs_N",
        ),
    ],
)
def test_a_loss_that_gives_no_loss_per_token_is_named_before_a_run(
    monkeypatch: pytest.MonkeyPatch, loss: Any, message: str
) -> None:
    monkeypatch.setattr(policy_losses, "_entries", dict(policy_losses._entries))
    policy_losses.add("wrong_loss_of_a_test", loss, replaceable=True)
    with pytest.raises(ConfigError, match=f"algorithm.loss=.*does not work: {message}"):
        bind_algorithm(AlgorithmConfig(loss=Part("wrong_loss_of_a_test")))


def test_a_loss_may_change_the_log_probs_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def clamped(inputs: LossInputs) -> TokenLosses:
        return TokenLosses(loss_N=-inputs.policy_logprobs_N.clamp_(min=-20.0) * inputs.advantages_N)

    monkeypatch.setattr(policy_losses, "_entries", {**policy_losses._entries})
    policy_losses.add("clamped_of_a_test", clamped)
    assert bind_algorithm(AlgorithmConfig(loss=Part("clamped_of_a_test")))
