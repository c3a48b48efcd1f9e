"""Seeds: everything random in a run is a pure function of the run's seed and of where it happens.

A resumed run therefore draws what the uninterrupted one would have drawn, without any generator state being saved.
"""

from __future__ import annotations

from enum import IntEnum


class Stream(IntEnum):
    """What a seed is for, so that uses of the same seed draw unrelated numbers: `mix_seed(seed, Stream.ROLLOUT, step)`.

    The numbers are fixed: changing one, or its position among the parts, changes the results of every run. Orders (of
    tasks in an epoch, of groups in minibatches, of demonstrations) are mixed from seed and position alone.
    """

    ROLLOUT = 1
    """From the run's seed: episodes of training steps."""
    EVALUATION = 2
    """From the run's seed: episodes of evaluations."""
    EVALUATION_SAMPLES = 1
    """From an evaluation's seed: its sampled episodes, beside the greedy ones."""
    DEMONSTRATIONS = 5
    """From the run's seed: episodes that may become demonstrations."""
    EXTRA_TASKS = 1
    """From the run's seed, after the batch and the round: tasks that refill a batch. Comes last, not second."""
    REVIEW = 3
    """From the run's seed, after the position: tasks of lower levels of a curriculum. Comes last, not second."""
    REVISIT = 4
    """From the run's seed, after the position: tasks that are drawn again. Comes last, not second."""


def mix_seed(*parts: int) -> int:
    """One 63-bit seed from several numbers; different parts give unrelated seeds (splitmix64).

    >>> mix_seed(1, 2) == mix_seed(1, 2), mix_seed(1, 2) == mix_seed(2, 1)
    (True, False)
    """
    state = 0
    for part in parts:
        state = (state + part + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1


def unit_float(*parts: int) -> float:
    """A number in [0, 1) with 53 random bits, the same for the same parts."""
    return (mix_seed(*parts) >> 10) / 9007199254740992.0
