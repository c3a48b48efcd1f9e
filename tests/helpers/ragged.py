"""Batches of ragged trajectories in plain Python: what the tests of estimators are built from.

Shape letters as in `agent_r1.algorithms.table`: `_N` action tokens, `_S` steps, `_R` trajectories.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from agent_r1.algorithms import Credit, StepTable
from agent_r1.types import Observation

PerStep = list[list[float | None]]
"""By trajectory and step: the advantage; None where there is no credit."""


@dataclass(frozen=True)
class Ragged:
    """One trajectory. `rewards` hold all that a step earned, what its tokens were charged (`token_rewards`) too."""

    rewards: list[float]
    lengths: list[int]
    group: int = 0
    values: list[float] | None = None
    bootstrap: float = 0.0
    """What stands for the future after the last step."""
    token_rewards: list[float] | None = None
    greedy: float = 0.0
    anchors: str | None = None
    """One letter a step; without them step t of every trajectory starts from state t."""

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths)

    @property
    def charges(self) -> list[float]:
        """What the tokens of each step were charged."""
        ends = list(accumulate(self.lengths))
        tokens = self.token_rewards or [0.0] * self.num_tokens
        return [sum(tokens[end - length : end]) for end, length in zip(ends, self.lengths, strict=True)]

    @property
    def task_rewards(self) -> list[float]:
        """The rewards without what single tokens were charged."""
        return [reward - charge for reward, charge in zip(self.rewards, self.charges, strict=True)]

    @property
    def states(self) -> list[str]:
        return list(self.anchors) if self.anchors is not None else [str(t) for t in range(len(self.rewards))]


def charged(task_rewards: list[float], lengths: list[int], token_rewards: list[float], group: int = 0) -> Ragged:
    """A trajectory that earned `task_rewards` and was charged for its tokens."""
    charges = Ragged(task_rewards, lengths, token_rewards=token_rewards).charges
    rewards = [reward + charge for reward, charge in zip(task_rewards, charges, strict=True)]
    return Ragged(rewards, lengths, group, token_rewards=token_rewards)


def table_of(batch: Sequence[Ragged]) -> StepTable:
    values = [value for t in batch for value in (t.values or [0.0] * t.num_tokens)]
    extra = [reward for t in batch for reward in (t.token_rewards or [])]
    return StepTable(
        rewards_S=torch.tensor([reward for t in batch for reward in t.rewards], dtype=torch.float64),
        lengths_S=torch.tensor([length for t in batch for length in t.lengths], dtype=torch.long),
        trajectory_S=torch.tensor([i for i, t in enumerate(batch) for _ in t.rewards], dtype=torch.long),
        group_R=torch.tensor([t.group for t in batch], dtype=torch.long),
        values_N=torch.tensor(values, dtype=torch.float64),
        bootstrap_R=torch.tensor([t.bootstrap for t in batch], dtype=torch.float64),
        token_rewards_N=torch.tensor(extra, dtype=torch.float64) if extra else None,
        greedy_returns_R=torch.tensor([t.greedy for t in batch], dtype=torch.float64),
        observations_S=tuple(Observation(text=state) for t in batch for state in t.states),
    )


def assert_close(found: Tensor, expected: Sequence[float], tolerance: float = 1e-9) -> None:
    assert len(found) == len(expected)
    assert found.tolist() == pytest.approx(expected, rel=tolerance, abs=tolerance)


def assert_credit(credit: Credit, batch: Sequence[Ragged], expected: PerStep, tolerance: float = 1e-9) -> None:
    """Every token of a step has the step's advantage, or no credit. Without credit any finite number may stand."""
    expected_N = over_tokens(batch, expected)
    assert credit.credited_N.tolist() == [advantage is not None for advantage in expected_N]
    credited = [advantage for advantage in expected_N if advantage is not None]
    assert_close(credit.advantages_N[credit.credited_N], credited, tolerance)
    assert torch.isfinite(credit.advantages_N).all()


def over_tokens(batch: Sequence[Ragged], per_step: PerStep) -> list[float | None]:
    """A number for each token from one for each step."""
    return [
        number
        for t, numbers in zip(batch, per_step, strict=True)
        for number, length in zip(numbers, t.lengths, strict=True)
        for _ in range(length)
    ]


# --- parts of the slow references ----------------------------------------------------------------------------------


def reference_whiten(numbers: list[float]) -> list[float]:
    if len(numbers) < 2:
        return [0.0] * len(numbers)
    mean, std = statistics.fmean(numbers), statistics.stdev(numbers)
    return [(number - mean) / (std + 1e-8) for number in numbers]


def reference_togo(rewards: list[float], gamma: float) -> list[float]:
    """What each moment and all later ones earned, discounted once a moment."""
    return [sum(gamma ** (later - t) * rewards[later] for later in range(t, len(rewards))) for t in range(len(rewards))]


def reference_spread(numbers: list[float]) -> bool:
    """At least two numbers that differ by more than rounding."""
    return len(numbers) > 1 and max(numbers) - min(numbers) > 1e-6 * max(1.0, *(abs(number) for number in numbers))


def reference_token_rewards(t: Ragged) -> list[float]:
    """A step's reward on its last token; an empty step's on the token before it, else on the one after."""
    rewards = list(t.token_rewards or [0.0] * t.num_tokens)
    if not rewards:
        return []
    for own, end in zip(t.task_rewards, accumulate(t.lengths), strict=True):
        rewards[max(end - 1, 0)] += own
    return rewards


# --- random ragged batches -----------------------------------------------------------------------------------------

GROUP_IDS = (-3, 0, 5, 1000)
"""Neither adjacent nor in order."""

eighths = st.integers(-24, 24).map(lambda n: n / 8)
outcomes = st.sampled_from([0.0, 0.0, 1.0])
"""So few that whole groups earn the same."""
discounts = st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0])


@st.composite
def trajectories(
    draw: st.DrawFn, with_token_rewards: bool = False, with_values: bool = False, sparse: bool = False
) -> Ragged:
    lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=5))
    rewards = draw(st.lists(outcomes if sparse else eighths, min_size=len(lengths), max_size=len(lengths)))
    total = sum(lengths)
    values = draw(st.lists(eighths, min_size=total, max_size=total)) if with_values else None
    extra = draw(st.lists(eighths, min_size=total, max_size=total)) if with_token_rewards else None
    if extra is not None:
        rewards = charged(rewards, lengths, extra).rewards
    return Ragged(
        rewards=rewards,
        lengths=lengths,
        group=draw(st.sampled_from(GROUP_IDS)),
        values=values,
        bootstrap=draw(st.just(0.0) | eighths),
        token_rewards=extra,
        greedy=draw(eighths | st.just(math.nan)),
        anchors=draw(st.text("ab", min_size=len(lengths), max_size=len(lengths))),
    )


@st.composite
def batches(draw: st.DrawFn, with_values: bool = False) -> list[Ragged]:
    """Up to eight trajectories of up to four groups; all of them are charged for their tokens, or none is."""
    one = trajectories(draw(st.booleans()), with_values=with_values, sparse=draw(st.booleans()))
    return draw(st.lists(one, min_size=1, max_size=8))


DEGENERATE: dict[str, list[Ragged]] = {
    "one trajectory": [Ragged([1.0, 0.5], [2, 3])],
    "one step": [Ragged([1.0], [4]), Ragged([0.0], [1])],
    "one token": [Ragged([1.0], [1])],
    "all rewards equal": [Ragged([0.1, 0.2], [1, 2]), Ragged([0.3], [2]), Ragged([0.3], [1], group=1)],
    "all rewards zero": [Ragged([0.0, 0.0], [1, 2]), Ragged([0.0], [2]), Ragged([0.0], [1], group=1)],
    "all bootstrapped": [Ragged([0.0], [2], bootstrap=0.5), Ragged([1.0], [1], bootstrap=0.25)],
    "some steps without tokens": [Ragged([1.0, 2.0, 3.0], [0, 2, 0]), Ragged([0.0, 1.0], [1, 0])],
    "one trajectory without tokens": [Ragged([1.0], [0]), Ragged([0.0], [2])],
    "no tokens at all": [Ragged([1.0, 2.0], [0, 0]), Ragged([0.0], [0])],
    "groups of one": [Ragged([1.0], [1], group=4), Ragged([0.0], [1], group=-4)],
    "no greedy rollout": [Ragged([1.0], [1], greedy=math.nan), Ragged([0.0], [1], greedy=math.nan)],
    "huge rewards": [Ragged([1e100, -1e100], [1, 1]), Ragged([-1e100], [2]), Ragged([1e-100], [1])],
    "an empty table": [],
}
