"""`RolloutLimits`: how large, how long and how faulty rollouts may be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutLimits:
    """Limits of a batch of rollouts."""

    max_steps: int = 8
    """Maximum steps per episode."""
    max_images: int | None = None
    """Maximum images in one prompt."""
    max_episode_images: int | None = None
    """Maximum images in all prompts of an episode together."""
    concurrency: int = 256
    """Episodes alive at once."""
    deadline_seconds: float = 600.0
    """An episode that takes longer fails."""
    retries: int = 2
    """Further attempts after a rollout failed, each with a new environment."""
    min_group_share: float = 0.5
    """A group with a smaller share of valid members is refilled, then dropped."""
    group_refills: int = 1
    """How often the failed members of such a group are rolled out again, after all other rollouts have ended."""
    max_failures_in_a_row: int = 100
    """Consecutive failed rollouts after which the circuit breaker stops the run."""
