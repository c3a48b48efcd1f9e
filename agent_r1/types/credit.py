"""What the learner made of a trajectory: credit and probabilities of each action token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean

LOG_RATIO_BOUND = 20.0
"""Log-ratios are bounded by it, so that ratios stay finite."""

Numbers = tuple[float | None, ...]
"""One per action token of a step; None where there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCredit:
    """The credit of one step. Arrays are aligned with the step's `action_ids`."""

    reward: float | None
    """What the step earned: its process reward, plus the outcome on the last step, less a KL penalty in the reward."""
    observed_return: float | None
    """The discounted sum of rewards from this step on, plus the critic's value after a truncation that is
    bootstrapped."""
    advantages: Numbers
    """Advantage of each token; None: the token has no credit, and no loss."""
    values: Numbers
    """The critic's value before each token; None where the estimator needs none. Empty without a critic."""
    old_logprobs: Numbers
    """Log-prob under the policy that the ratio starts from."""
    logprobs: Numbers
    """Log-prob in the last update that read the token, before that update changed the weights; None: none read it."""
    entropies: Numbers
    """Entropy of the distribution of each token in the same pass."""
    penalties: Numbers = ()
    """What a KL penalty in the reward took from each token. Empty without one."""
    next_value: float | None = None
    """The critic's value after the step, where the trajectory was truncated and bootstrapped; None everywhere else."""

    @property
    def ratios(self) -> Numbers:
        """`exp(logprob - old_logprob)` of each token, as the last update saw it.

        >>> StepCredit(reward=1.0, observed_return=1.0, advantages=(0.5, 0.5), values=(), old_logprobs=(-1.0, -2.0),
        ...            logprobs=(-1.0, None), entropies=(0.7, None)).ratios
        (1.0, None)
        """
        return tuple(
            None if now is None or old is None else math.exp(max(-LOG_RATIO_BOUND, min(LOG_RATIO_BOUND, now - old)))
            for now, old in zip(self.logprobs, self.old_logprobs, strict=True)
        )

    @property
    def advantage(self) -> float | None:
        """The mean over the tokens with credit; None without any."""
        credited = [number for number in self.advantages if number is not None]
        return fmean(credited) if credited else None

    @property
    def value(self) -> float | None:
        """The critic's value before the step; None without a critic."""
        return self.values[0] if self.values else None


@dataclass(frozen=True, kw_only=True, slots=True)
class TrajectoryCredit:
    """The credit of one trajectory's steps."""

    group_id: int
    """The trajectory's group."""
    member: int
    """The trajectory's number in its group."""
    steps: tuple[StepCredit, ...]
    """One per step of the trajectory, in order."""
