"""What a changed reward or estimator changes: ranks, signs of advantages, parts of the reward, and examples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from agent_r1.rewards import returns_differ
from agent_r1.training.replay.credit import Key, ReplayedCredit, ReplayedTrajectory
from agent_r1.types import Trajectory

_TINY = 1e-12
"""Advantages nearer to 0 have no sign: they are the rounding errors of equal returns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """How one number of the trajectories changed."""

    before: float | None
    """Its mean as recorded; None: it was not recorded."""
    after: float | None
    """Its mean now; None: it is no longer reported."""
    changed: float
    """The share of trajectories in which it differs; those that had or have no such number differ."""
    rank_correlation: float | None
    """Spearman's, over all trajectories; None where one side does not vary."""
    within_groups: float | None
    """The mean of that of each group in which both sides vary, which is what algorithms with a group baseline see."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdvantageChange:
    """How advantages changed, trajectory by trajectory (each with the mean over its tokens)."""

    trajectories: int
    """Trajectories that have credit before or after."""
    flipped: float
    """The share whose sign changed."""
    to_negative: int
    """Trajectories that were encouraged and would be discouraged."""
    to_positive: int
    """Trajectories that were discouraged and would be encouraged."""
    lost: int
    """Trajectories that had credit and would have none."""
    gained: int
    """Trajectories that had no credit and would have some."""
    flipped_tokens: float
    """The share of tokens whose sign changed, of those with credit before or after."""
    rank_correlation: float | None
    """Spearman's, over trajectories with credit on both sides."""
    identical: bool
    """Whether every token has exactly the same advantage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A trajectory that changes much."""

    step: int
    """Its training step."""
    trajectory: Trajectory
    """The trajectory as it was recorded."""
    ground_truth: str
    """The ground truth of the row."""
    reward: tuple[float, float]
    """Its outcome reward, before and after."""
    advantage: tuple[float | None, float | None]
    """Its advantage, before and after; None: no credit."""

    @property
    def is_flipped(self) -> bool:
        """Whether its advantage changed its sign."""
        before, after = (sign(number) for number in self.advantage)
        return before * after < 0


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation, equal numbers with the mean of their ranks; None where one side does not vary.

    >>> rank_correlation([0.0, 0.5, 1.0], [1.0, 2.0, 30.0])
    1.0
    >>> rank_correlation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0])
    -1.0
    """
    middle = (len(first) - 1) / 2
    centred = [[rank - middle for rank in _ranks(side)] for side in (first, second)]
    spreads = [sum(value * value for value in side) for side in centred]
    if min(spreads) <= 0:
        return None
    product = sum(one * other for one, other in zip(*centred, strict=True))
    return max(-1.0, min(1.0, float(product / (spreads[0] * spreads[1]) ** 0.5)))


def _ranks(numbers: Sequence[float]) -> list[float]:
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    ranks = [0.0] * len(numbers)
    first = 0
    while first < len(order):
        last = first
        while last + 1 < len(order) and numbers[order[last + 1]] == numbers[order[first]]:
            last += 1
        for index in order[first : last + 1]:
            ranks[index] = (first + last) / 2
        first = last + 1
    return ranks


def compare_numbers(before: Mapping[Key, float], after: Mapping[Key, float]) -> Change:
    """How a number of the trajectories changed."""
    both = [key for key in before if key in after]
    groups: dict[tuple[int, int], list[Key]] = defaultdict(list)
    for key in both:
        groups[key[:2]].append(key)
    within = [_rank_correlation(members, before, after) for members in groups.values()]
    correlations = [number for number in within if number is not None]
    total = len(before.keys() | after.keys())
    same = sum(before[key] == after[key] for key in both)
    return Change(
        before=fmean(before.values()) if before else None,
        after=fmean(after.values()) if after else None,
        changed=(total - same) / total if total else 0.0,
        rank_correlation=_rank_correlation(both, before, after),
        within_groups=fmean(correlations) if correlations else None,
    )


def _rank_correlation(keys: Sequence[Key], before: Mapping[Key, float], after: Mapping[Key, float]) -> float | None:
    return rank_correlation([before[key] for key in keys], [after[key] for key in keys])


def share_with_spread(credit: ReplayedCredit) -> float:
    """The share of groups whose members earn different returns; the others teach nothing where members are compared."""
    groups: dict[tuple[int, int], list[float]] = defaultdict(list)
    for (step, group, _), trajectory in credit.trajectories.items():
        groups[step, group].append(sum(trajectory.rewards))
    return fmean(returns_differ(returns) for returns in groups.values()) if groups else 0.0


def compare_advantages(before: ReplayedCredit, after: ReplayedCredit) -> AdvantageChange | None:
    """How advantages changed; None when one side has none."""
    if before.missing or after.missing:
        return None
    keys = [*before.trajectories, *(key for key in after.trajectories if key not in before.trajectories)]
    pairs = [(before.trajectories.get(key), after.trajectories.get(key)) for key in keys]
    means = [(_advantage(one), _advantage(other)) for one, other in pairs]
    credited = [pair for pair in means if pair != (None, None)]
    signs = [(sign(one), sign(other)) for one, other in credited if one is not None and other is not None]
    tokens = [pair for sides in pairs for pair in _tokens(sides) if pair != (None, None)]
    flipped = [one * other < 0 for one, other in signs]
    both = [(one, other) for one, other in credited if one is not None and other is not None]
    return AdvantageChange(
        trajectories=len(credited),
        flipped=sum(flipped) / len(credited) if credited else 0.0,
        to_negative=sum(one > 0 > other for one, other in signs),
        to_positive=sum(one < 0 < other for one, other in signs),
        lost=sum(one is not None and other is None for one, other in credited),
        gained=sum(one is None and other is not None for one, other in credited),
        flipped_tokens=sum(sign(one) * sign(other) < 0 for one, other in tokens) / len(tokens) if tokens else 0.0,
        rank_correlation=rank_correlation([one for one, _ in both], [other for _, other in both]),
        identical=all(one and other and one.advantages == other.advantages for one, other in pairs),
    )


def sign(number: float | None) -> int:
    """-1, 0 or 1; 0 for no credit.

    >>> sign(-0.5), sign(None), sign(1e-15)
    (-1, 0, 0)
    """
    return 0 if number is None or abs(number) <= _TINY else 1 if number > 0 else -1


def _advantage(trajectory: ReplayedTrajectory | None) -> float | None:
    return None if trajectory is None else trajectory.advantage


def _tokens(
    pair: tuple[ReplayedTrajectory | None, ReplayedTrajectory | None],
) -> list[tuple[float | None, float | None]]:
    """The advantages of a trajectory's tokens on both sides."""
    flat = [
        None if side is None else [number for numbers in side.advantages or () for number in numbers] for side in pair
    ]
    length = max(len(numbers) for numbers in flat if numbers is not None)
    one, other = (numbers if numbers is not None else [None] * length for numbers in flat)
    return list(zip(one, other, strict=True))


def worst_first(examples: Sequence[Example]) -> list[Example]:
    """The trajectories that change, flipped ones first, and among these those that change most."""

    def key(example: Example) -> tuple[bool, float, float]:
        one, other = (number or 0.0 for number in example.advantage)
        return not example.is_flipped, -abs(other - one), -abs(example.reward[1] - example.reward[0])

    changed = [
        example
        for example in examples
        if example.reward[0] != example.reward[1] or example.advantage[0] != example.advantage[1]
    ]
    return sorted(changed, key=key)
