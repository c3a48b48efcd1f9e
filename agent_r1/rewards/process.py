"""Process rewards, which steps earn themselves, and their balance against the outcome reward.

They stay on their steps; the estimator decides how far back they are credited. Balancing only divides them, so that
neither part dominates:

| normalisation | divides by |
|---|---|
| `none` | 1 |
| `return_max` | the batch's largest absolute process return-to-go, as in PRIME (arXiv:2502.01456) |
| `group_std` | the standard deviation of the trajectories' process sums in their group |
| `running` | a running standard deviation of all discounted process returns-to-go of the run |

A divisor of 0 (nothing was earned, or all members earned the same) is replaced by 1. One outlier shrinks a whole batch
under `return_max`; `bound` cuts single process rewards before anything is divided.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent_r1.types import Trajectory

NORMALISATIONS = ("none", "return_max", "group_std", "running")

_TINY = 1e-8


@dataclass
class RunningSpread:
    """Running count, mean and spread (Chan's parallel form of Welford's method)."""

    count: float = 0.0
    mean: float = 0.0
    squares: float = 0.0
    """The sum of squared distances from the mean."""

    def add(self, numbers: Sequence[float]) -> None:
        """Add numbers: after (1, 3) the standard deviation is 1.4142."""
        if not numbers:
            return
        count, mean = len(numbers), math.fsum(numbers) / len(numbers)
        squares = math.fsum((number - mean) ** 2 for number in numbers)
        total, shift = self.count + count, mean - self.mean
        self.squares += squares + shift**2 * self.count * count / total
        self.mean += shift * count / total
        self.count = total

    @property
    def std(self) -> float:
        """Unbiased; 0 for fewer than two numbers."""
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0


class ProcessBalance:
    """Balances the process rewards of a batch. `running` carries state from batch to batch.

    Two members of a group with process rewards (.1, .1) and (0,): `return_max` divides by .2, `group_std` by .1414.
    """

    def __init__(
        self, *, weight: float = 1.0, normalisation: str = "none", gamma: float = 1.0, bound: float | None = None
    ) -> None:
        if normalisation not in NORMALISATIONS:
            raise ValueError(f"normalisation={normalisation} is not one of {', '.join(NORMALISATIONS)}")
        self.weight = weight
        self.normalisation = normalisation
        self.gamma = gamma
        self.bound = bound
        self.running = RunningSpread()

    def observe(self, groups: Sequence[Sequence[Trajectory]]) -> list[float]:
        """The factor of each group's process rewards, after updating the running statistics with this batch."""
        rewards = [[self._bounded_rewards(trajectory) for trajectory in group] for group in groups]
        togo = [
            number
            for group, bounded in zip(groups, rewards, strict=True)
            for trajectory, steps in zip(group, bounded, strict=True)
            for number in returns_to_go(steps, self.gamma, trajectory.parents)
        ]
        if self.normalisation == "return_max":
            divisors = [max(map(abs, togo), default=0.0)] * len(groups)
        elif self.normalisation == "group_std":
            divisors = [_std([math.fsum(steps) for steps in group]) for group in rewards]
        elif self.normalisation == "running":
            self.running.add(togo)
            divisors = [self.running.std] * len(groups)
        else:
            divisors = [1.0] * len(groups)
        # Rounding errors of equal numbers are no spread.
        smallest = _TINY * max(1.0, max(map(abs, togo), default=0.0))
        return [self.weight / (divisor if divisor > smallest else 1.0) for divisor in divisors]

    def balanced(self, trajectory: Trajectory, factor: float) -> list[float]:
        """A trajectory's process rewards, step by step, times its group's factor."""
        return [factor * reward for reward in self._bounded_rewards(trajectory)]

    def _bounded_rewards(self, trajectory: Trajectory) -> list[float]:
        rewards = [step.reward for step in trajectory.steps]
        if self.bound is None:
            return rewards
        return [min(max(reward, -self.bound), self.bound) for reward in rewards]

    def state_dict(self) -> dict[str, float]:
        """What a resumed run needs."""
        return {"count": self.running.count, "mean": self.running.mean, "squares": self.running.squares}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore what `state_dict` returned."""
        self.running = RunningSpread(**state)


def returns_to_go(rewards: Sequence[float], gamma: float, parents: Sequence[int] | None = None) -> list[float]:
    """The discounted return from each step on. `parents` are the steps that each one continues, -1 for none; without
    them it is the one before. What follows a step that several continue is their mean.

    >>> returns_to_go([0.0, 1.0], 0.5)
    [0.5, 1.0]
    >>> returns_to_go([0.0, 1.0, 3.0], 0.5, [-1, 0, 0])
    [1.0, 1.0, 3.0]
    """
    parents = range(-1, len(rewards) - 1) if parents is None else parents
    result, continuations = list(rewards), Counter(parents)
    for step in reversed(range(len(rewards))):  # what continues a step comes after it
        parent = parents[step]
        if parent >= 0:
            result[parent] += gamma * result[step] / continuations[parent]
    return result


def _std(numbers: Sequence[float]) -> float:
    spread = RunningSpread()
    spread.add(numbers)
    return spread.std
