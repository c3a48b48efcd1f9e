"""The reward of every step of a batch: balanced process reward, over-long penalty, and the outcome on the last step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent_r1.rewards.process import ProcessBalance
from agent_r1.types import Group, Trajectory

SPREAD_TOLERANCE = 1e-6
"""Returns of a group that differ by less than this, relative to their size (or to 1 if they are smaller), are equal."""


def returns_differ(returns: Sequence[float]) -> bool:
    """At least two members of a group earned different returns: (1, 1, 0) do, (1, 1) and (1,) do not."""
    if len(returns) < 2:
        return False
    lowest, highest = min(returns), max(returns)
    return highest - lowest > SPREAD_TOLERANCE * max(abs(lowest), abs(highest), 1.0)


def overlong_penalty(num_tokens: int, *, max_tokens: int, fraction: float) -> float:
    """DAPO's soft penalty for an action near its token limit (Yu et al. 2025, arXiv:2503.14476).

    0 up to `(1 - fraction) * max_tokens`, then falling in a straight line to -1 at `max_tokens`. With a limit of 100
    and a fraction of .2: 80 tokens cost 0, 90 cost -.5, 100 cost -1. A fraction of 0 switches it off.
    """
    buffer = fraction * max_tokens
    if buffer <= 0:
        return 0.0
    return max(-1.0, min(0.0, (max_tokens - buffer - num_tokens) / buffer))


@dataclass(frozen=True, kw_only=True, slots=True)
class ShapedRewards:
    """The rewards of a batch, step by step."""

    steps: tuple[tuple[float, ...], ...]
    """The rewards of each trajectory's steps: trajectory after trajectory, group after group."""
    greedy_returns: Mapping[int, float]
    """The return of each group's greedy rollout, by group id; absent where there was none."""
    metrics: Mapping[str, float]
    """The parts, as means over trajectories."""


class RewardShaping:
    """Adds up the parts of the reward.

    Process rewards (.1, .1, 0) and an outcome of 1 with a process weight of .5 give (.05, .05, 1). With `bootstrap`, a
    trajectory that was cut earns (.05, .05, 0), and the critic's value of its next state stands for the rest.
    """

    def __init__(
        self, *, process: ProcessBalance, max_tokens: int, overlong_fraction: float = 0.0, bootstrap: bool = False
    ) -> None:
        self.process = process
        self._bootstrap = bootstrap
        self._max_tokens = max_tokens
        self._overlong_fraction = overlong_fraction

    def __call__(self, groups: Sequence[Group]) -> ShapedRewards:
        """The rewards of the valid members of each group. A greedy rollout is scaled as its group is."""
        members = [group.learnable for group in groups]
        factors = self.process.observe(members)
        steps, process_sums, penalties = [], [], []
        for group, factor in zip(members, factors, strict=True):
            for trajectory in group:
                steps.append(self._steps(trajectory, factor))
                process_sums.append(sum(self.process.balanced(trajectory, factor)))
                penalties.append(sum(self._overlong(trajectory)))
        metrics = {"reward/process_balanced": _mean(process_sums)}
        if self._overlong_fraction > 0:
            metrics["reward/overlong"] = _mean(penalties)
        greedy = {
            group.group_id: sum(self._steps(group.greedy, factor))
            for group, factor in zip(groups, factors, strict=True)
            if group.greedy is not None and not group.greedy.is_failure
        }
        return ShapedRewards(steps=tuple(steps), greedy_returns=greedy, metrics=metrics)

    def plain_return(self, trajectory: Trajectory) -> float:
        """The return of a trajectory, before process rewards are rescaled."""
        return sum(self.plain_rewards(trajectory))

    def plain_rewards(self, trajectory: Trajectory) -> tuple[float, ...]:
        """The reward of each step of a trajectory, before process rewards are rescaled."""
        return self._steps(trajectory, self.process.weight)

    def is_bootstrapped(self, trajectory: Trajectory) -> bool:
        """The trajectory was cut, and a critic's value of its next state takes the place of its outcome.

        A trajectory is scored or bootstrapped, never both: the value predicts the very outcome that was given.
        """
        return self._bootstrap and trajectory.stop_reason.is_truncation and bool(trajectory.next_prompt_ids)

    def _steps(self, trajectory: Trajectory, factor: float) -> tuple[float, ...]:
        process, penalties = self.process.balanced(trajectory, factor), self._overlong(trajectory)
        rewards = [earned + penalty for earned, penalty in zip(process, penalties, strict=True)]
        if rewards and not self.is_bootstrapped(trajectory):
            rewards[-1] += trajectory.outcome_reward
        return tuple(rewards)

    def _overlong(self, trajectory: Trajectory) -> list[float]:
        return [
            overlong_penalty(len(step.action_ids), max_tokens=self._max_tokens, fraction=self._overlong_fraction)
            for step in trajectory.steps
        ]


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0
