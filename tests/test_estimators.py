"""Advantage estimators: numbers by hand, and slow references that fast code has to agree with.

Shape letters as in `agent_r1.algorithms.table`: `_N` action tokens, `_S` steps, `_R` trajectories.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agent_r1.algorithms import Credit, StepTable, estimators, reverse_scan, whiten
from agent_r1.algorithms.estimators import group, group_statistics, step_gae, token_gae
from agent_r1.algorithms.scan import next_in_segment
from agent_r1.errors import UnknownNameError


@dataclass(frozen=True)
class Ragged:
    """One trajectory in plain Python."""

    rewards: list[float]
    lengths: list[int]
    group: int = 0
    truncated: bool = False
    values: list[float] | None = None
    bootstrap: float = 0.0
    token_rewards: list[float] | None = None

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths)


def table_of(batch: list[Ragged]) -> StepTable:
    values = [value for t in batch for value in (t.values or [0.0] * t.num_tokens)]
    extra = [reward for t in batch for reward in (t.token_rewards or [])]
    return StepTable(
        rewards_S=torch.tensor([reward for t in batch for reward in t.rewards], dtype=torch.float64),
        lengths_S=torch.tensor([length for t in batch for length in t.lengths], dtype=torch.long),
        trajectory_S=torch.tensor([i for i, t in enumerate(batch) for _ in t.rewards], dtype=torch.long),
        group_R=torch.tensor([t.group for t in batch], dtype=torch.long),
        truncated_R=torch.tensor([t.truncated for t in batch], dtype=torch.bool),
        values_N=torch.tensor(values, dtype=torch.float64),
        bootstrap_R=torch.tensor([t.bootstrap for t in batch], dtype=torch.float64),
        token_rewards_N=torch.tensor(extra, dtype=torch.float64) if extra else None,
    )


def assert_close(found: Tensor, expected: list[float], tolerance: float = 1e-9) -> None:
    assert len(found) == len(expected)
    assert found.tolist() == pytest.approx(expected, rel=tolerance, abs=tolerance)


# --- slow references -----------------------------------------------------------------------------------------------


def reference_whiten(numbers: list[float]) -> list[float]:
    if len(numbers) < 2:
        return [0.0] * len(numbers)
    mean, std = statistics.fmean(numbers), statistics.stdev(numbers)
    return [(number - mean) / (std + 1e-8) for number in numbers]


def reference_group(batch: list[Ragged], epsilon: float = 1e-6) -> tuple[list[float], list[bool]]:
    """Advantage and credit of each token."""
    members: dict[int, list[float]] = {}
    for t in batch:
        members.setdefault(t.group, []).append(sum(t.rewards))
    advantages, credited = [], []
    for t in batch:
        returns = members[t.group]
        scale = max(1.0, max(abs(number) for number in returns))
        spread = len(returns) > 1 and max(returns) - min(returns) > 1e-6 * scale
        std = statistics.stdev(returns) if len(returns) > 1 else 0.0
        advantages += [(sum(t.rewards) - statistics.fmean(returns)) / (std + epsilon)] * t.num_tokens
        credited += [spread] * t.num_tokens
    return advantages, credited


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
        values = [(t.values or [])[start] if n else 0.0 for start, n in zip(starts, t.lengths, strict=True)]
        after = t.bootstrap if t.truncated else 0.0
        advantages = reference_gae(t.rewards, values, after, gamma, lam)
        per_step += [(a, a + v, n) for a, v, n in zip(advantages, values, t.lengths, strict=True)]
    white = iter(reference_whiten([a for a, _, n in per_step if n]))
    advantages_N, targets_N = [], []
    for _, target, length in per_step:
        if length:
            advantages_N += [next(white)] * length
            targets_N += [target] * length
    return advantages_N, targets_N


def reference_token_rewards(t: Ragged) -> list[float]:
    """A step's reward on its last token; an empty step's on the token before it, else on the one after."""
    rewards = list(t.token_rewards or [0.0] * t.num_tokens)
    position, waiting = 0, 0.0
    for reward, length in zip(t.rewards, t.lengths, strict=True):
        own = reward - sum((t.token_rewards or [0.0] * t.num_tokens)[position : position + length])
        position += length
        if position == 0:
            waiting += own
        else:
            rewards[position - 1] += own
            if waiting:
                rewards[0] += waiting
                waiting = 0.0
    return rewards


def reference_token_gae(batch: list[Ragged], gamma: float, lam: float) -> tuple[list[float], list[float]]:
    """Whitened advantage and target of each token."""
    plain, targets = [], []
    for t in batch:
        values = t.values or []
        after = t.bootstrap if t.truncated else 0.0
        advantages = reference_gae(reference_token_rewards(t), values, after, gamma, lam)
        plain += advantages
        targets += [a + v for a, v in zip(advantages, values, strict=True)]
    return reference_whiten(plain), targets


# --- random ragged batches -----------------------------------------------------------------------------------------

eighths = st.integers(-24, 24).map(lambda n: n / 8)
discounts = st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0])


@st.composite
def trajectories(draw: st.DrawFn, with_token_rewards: bool = False) -> Ragged:
    lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=5))
    rewards = draw(st.lists(eighths, min_size=len(lengths), max_size=len(lengths)))
    total = sum(lengths)
    values = draw(st.lists(eighths, min_size=total, max_size=total))
    extra = draw(st.lists(eighths, min_size=total, max_size=total)) if with_token_rewards else None
    if extra is not None:
        starts = [sum(lengths[:s]) for s in range(len(lengths))]
        rewards = [r + sum(extra[a : a + n]) for r, a, n in zip(rewards, starts, lengths, strict=True)]
    return Ragged(
        rewards=rewards,
        lengths=lengths,
        group=draw(st.integers(0, 3)),
        truncated=draw(st.booleans()),
        values=values,
        bootstrap=draw(eighths),
        token_rewards=extra,
    )


batches = st.lists(trajectories(), min_size=1, max_size=8)


@settings(deadline=None, max_examples=40)
@given(batches)
def test_group_agrees_with_the_reference(batch: list[Ragged]) -> None:
    credit = group(table_of(batch))
    advantages, credited = reference_group(batch)
    assert_close(credit.advantages_N, advantages)
    assert credit.credited_N.tolist() == credited


@settings(deadline=None, max_examples=40)
@given(batches, discounts, discounts)
def test_step_gae_agrees_with_the_reference(batch: list[Ragged], gamma: float, lam: float) -> None:
    credit = step_gae(table_of(batch), gamma=gamma, lam=lam)
    advantages, targets = reference_step_gae(batch, gamma, lam)
    assert credit.returns_N is not None
    assert_close(credit.advantages_N, advantages, 1e-6)
    assert_close(credit.returns_N, targets)


@settings(deadline=None, max_examples=40)
@given(batches, discounts, discounts)
def test_token_gae_agrees_with_the_reference(batch: list[Ragged], gamma: float, lam: float) -> None:
    credit = token_gae(table_of(batch), gamma=gamma, lam=lam)
    advantages, targets = reference_token_gae(batch, gamma, lam)
    assert credit.returns_N is not None
    assert_close(credit.advantages_N, advantages, 1e-6)
    assert_close(credit.returns_N, targets)


@settings(deadline=None, max_examples=40)
@given(st.lists(trajectories(with_token_rewards=True), min_size=1, max_size=6))
def test_token_gae_with_token_rewards_agrees_with_the_reference(batch: list[Ragged]) -> None:
    credit = token_gae(table_of(batch), gamma=0.9, lam=0.5)
    advantages, targets = reference_token_gae(batch, 0.9, 0.5)
    assert credit.returns_N is not None
    assert_close(credit.advantages_N, advantages, 1e-6)
    assert_close(credit.returns_N, targets)


# --- by hand -------------------------------------------------------------------------------------------------------


def test_group_by_hand() -> None:
    # Returns 1, 0, 0: mean 1/3, unbiased variance (4/9 + 1/9 + 1/9) / 2 = 1/3, std .57735.
    batch = [Ragged([1.0], [2]), Ragged([0.0], [1]), Ragged([0.0], [1])]
    credit = group(table_of(batch), epsilon=0.0)
    assert_close(credit.advantages_N, [1.1547005, 1.1547005, -0.5773503, -0.5773503], 1e-6)
    assert credit.credited_N.all()
    assert credit.returns_N is None
    assert credit.valued_N is None


def test_group_without_std_is_the_return_minus_the_mean() -> None:
    batch = [Ragged([4.0], [1]), Ragged([1.0], [1]), Ragged([1.0], [1])]
    assert_close(group(table_of(batch), normalise_std=False).advantages_N, [2.0, -1.0, -1.0])


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


def test_token_gae_does_not_cross_trajectories() -> None:
    apart = [Ragged([0.0], [2], values=[0.5, 0.4]), Ragged([8.0], [2], values=[0.3, 0.1])]
    together = token_gae(table_of(apart), whitened=False).advantages_N
    alone = token_gae(table_of(apart[:1]), whitened=False).advantages_N
    assert_close(together[:2], alone.tolist())


@pytest.mark.parametrize(("truncated", "expected"), [(False, [0.0625, 0.75]), (True, [0.8725, 2.55])])
def test_only_a_truncated_trajectory_bootstraps_step_gae(truncated: bool, expected: list[float]) -> None:
    # Truncated: delta_1 = 1 + .9 * 2 - .25 = 2.55; A_0 = -.275 + .45 * 2.55 = .8725.
    batch = [Ragged([0.0, 1.0], [1, 1], truncated=truncated, values=[0.5, 0.25], bootstrap=2.0)]
    assert_close(step_gae(table_of(batch), gamma=0.9, lam=0.5, whitened=False).advantages_N, expected)


@pytest.mark.parametrize(("truncated", "expected"), [(False, [-0.05, 0.8]), (True, [0.76, 2.6])])
def test_only_a_truncated_trajectory_bootstraps_token_gae(truncated: bool, expected: list[float]) -> None:
    # Terminated: A_1 = 1 - .2 = .8; A_0 = .9 * .2 - .59 + .45 * .8 = -.05. Truncated: A_1 = .8 + .9 * 2 = 2.6.
    batch = [Ragged([1.0], [2], truncated=truncated, values=[0.59, 0.2], bootstrap=2.0)]
    assert_close(token_gae(table_of(batch), gamma=0.9, lam=0.5, whitened=False).advantages_N, expected)


def test_gae_with_lambda_one_and_no_values_is_the_return_to_go() -> None:
    batch = [Ragged([1.0, 2.0, 4.0], [1, 1, 1])]
    assert_close(step_gae(table_of(batch), gamma=0.5, lam=1.0, whitened=False).advantages_N, [3.0, 4.0, 4.0])


def test_step_gae_whitens_over_steps_not_tokens() -> None:
    # Step advantages 0 and 2: whitened -.7071 and .7071, although the first step has three tokens.
    batch = [Ragged([0.0], [3]), Ragged([2.0], [1])]
    credit = step_gae(table_of(batch))
    assert_close(credit.advantages_N, [-0.70710678] * 3 + [0.70710678], 1e-7)


def test_an_estimator_that_needs_values_says_so() -> None:
    table = table_of([Ragged([1.0], [1])])
    without = StepTable(
        rewards_S=table.rewards_S,
        lengths_S=table.lengths_S,
        trajectory_S=table.trajectory_S,
        group_R=table.group_R,
        truncated_R=table.truncated_R,
    )
    with pytest.raises(ValueError, match="needs a critic"):
        token_gae(without)


def test_an_unknown_estimator_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="'step_gae'"):
        estimators.get("step_gea")


# --- groups without spread -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "returns",
    [
        pytest.param([1.0, 1.0, 1.0], id="equal"),
        pytest.param([0.1 + 0.2, 0.3], id="equal up to rounding"),
        pytest.param([1e9 + 1e-3, 1e9], id="equal relative to their size"),
        pytest.param([5.0], id="a group of one"),
    ],
)
def test_a_group_without_spread_has_no_credit(returns: list[float]) -> None:
    batch = [Ragged([number], [2]) for number in returns]
    credit = group(table_of(batch))
    assert not credit.credited_N.any()
    assert torch.isfinite(credit.advantages_N).all()


def test_a_small_but_real_difference_is_spread() -> None:
    credit = group(table_of([Ragged([0.501], [1]), Ragged([0.5], [1])]), epsilon=0.0)
    assert credit.credited_N.all()
    assert_close(credit.advantages_N, [0.70710678, -0.70710678], 1e-6)


def test_a_dead_group_takes_no_credit_from_a_live_one() -> None:
    batch = [Ragged([1.0], [1], group=7), Ragged([1.0], [1], group=3), Ragged([0.0], [1], group=7)]
    assert group(table_of(batch)).credited_N.tolist() == [True, False, True]


def test_equal_step_sums_in_different_order_are_no_spread() -> None:
    batch = [Ragged([0.1, 0.2, 0.3], [1, 1, 1]), Ragged([0.3, 0.2, 0.1], [1, 1, 1])]
    assert not group(table_of(batch)).credited_N.any()


def test_statistics_count_each_trajectory_once() -> None:
    # Returns 1 (one step) and 0 (five steps): mean .5, std .7071, whatever the number of steps and tokens.
    batch = [Ragged([1.0], [1]), Ragged([0.0] * 5, [4] * 5)]
    credit = group(table_of(batch), epsilon=0.0)
    assert_close(credit.advantages_N, [0.70710678] + [-0.70710678] * 20, 1e-7)


def test_group_statistics_by_hand() -> None:
    statistics_R = group_statistics(torch.tensor([1.0, 5.0, 0.0]).double(), torch.tensor([4, 2, 4]))
    assert_close(statistics_R.mean_R, [0.5, 5.0, 0.5])
    assert_close(statistics_R.std_R, [0.70710678, 0.0, 0.70710678], 1e-7)
    assert statistics_R.has_spread_R.tolist() == [True, False, True]


# --- no NaN, whatever comes ----------------------------------------------------------------------------------------

DEGENERATE = {
    "one trajectory": [Ragged([1.0, 0.5], [2, 3])],
    "one step": [Ragged([1.0], [4]), Ragged([0.0], [1])],
    "one token": [Ragged([1.0], [1])],
    "all rewards equal": [Ragged([0.1, 0.2], [1, 2]), Ragged([0.3], [2]), Ragged([0.3], [1], group=1)],
    "all truncated": [Ragged([0.0], [2], truncated=True, bootstrap=0.5), Ragged([1.0], [1], truncated=True)],
    "some steps without tokens": [Ragged([1.0, 2.0, 3.0], [0, 2, 0]), Ragged([0.0, 1.0], [1, 0])],
    "one trajectory without tokens": [Ragged([1.0], [0]), Ragged([0.0], [2])],
    "no tokens at all": [Ragged([1.0, 2.0], [0, 0]), Ragged([0.0], [0])],
    "an empty table": [],
}


@pytest.mark.parametrize("case", DEGENERATE)
@pytest.mark.parametrize("name", ["group", "step_gae", "token_gae"])
def test_degenerate_batches_give_finite_credit(name: str, case: str) -> None:
    table = table_of(DEGENERATE[case])
    credit: Credit = estimators.get(name)(table)
    assert len(credit.advantages_N) == len(credit.credited_N) == table.num_tokens
    assert torch.isfinite(credit.advantages_N).all()
    if credit.returns_N is not None:
        assert torch.isfinite(credit.returns_N).all()


def test_whiten_gives_mean_zero_and_unit_deviation() -> None:
    assert_close(whiten(torch.tensor([1.0, 3.0]).double()), [-0.70710678, 0.70710678], 1e-6)


def test_whiten_of_one_value_is_zero() -> None:
    assert whiten(torch.tensor([5.0])).tolist() == [0.0]


def test_whiten_of_nothing_is_nothing() -> None:
    assert whiten(torch.tensor([])).tolist() == []


def test_whiten_of_equal_values_is_zero() -> None:
    assert_close(whiten(torch.full((7,), 0.3).double()), [0.0] * 7, 1e-7)


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


@settings(deadline=None, max_examples=40)
@given(st.lists(trajectories(with_token_rewards=True), min_size=1, max_size=6))
def test_rewards_per_token_sum_to_the_rewards_of_their_trajectory(batch: list[Ragged]) -> None:
    table = table_of(batch)
    per_token_R = table.per_token().returns_R
    expected = [sum(t.rewards) if t.num_tokens else 0.0 for t in batch]
    assert_close(per_token_R, expected)


# --- scans ---------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
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


def test_token_gae_over_two_million_tokens_takes_less_than_two_seconds() -> None:
    num_trajectories, num_steps, num_tokens = 4096, 8, 64
    total = num_trajectories * num_steps
    table = StepTable(
        rewards_S=torch.ones(total, dtype=torch.float64),
        lengths_S=torch.full((total,), num_tokens),
        trajectory_S=torch.arange(num_trajectories).repeat_interleave(num_steps),
        group_R=torch.arange(num_trajectories) // 8,
        truncated_R=torch.zeros(num_trajectories, dtype=torch.bool),
        values_N=torch.zeros(total * num_tokens, dtype=torch.float64),
    )
    seconds = []
    for _ in range(3):
        started = time.process_time()  # others may be using the machine
        credit = token_gae(table, gamma=1.0, lam=1.0, whitened=False)
        seconds.append(time.process_time() - started)
        assert credit.advantages_N[0] == num_steps
        assert credit.advantages_N[-1] == 1.0
    assert min(seconds) < 2.0
