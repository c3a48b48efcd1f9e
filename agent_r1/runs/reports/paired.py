"""Is a trained model better than the one it started from? Both are compared task by task.

Two models that answer the same tasks agree on most of them. What tells them apart are the tasks on which they differ,
so the gain of a model has a narrower interval than the success of either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_r1.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Solved = Mapping[str, float]
"""How well each task was solved, by the task's id."""

_DRAWS = 10_000
_CHUNK = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """What training changed on a set of tasks."""

    tasks: int
    """Tasks that were compared."""
    seeds: int
    """Runs that were pooled."""
    before: float
    """Mean success before training."""
    after: float
    """Mean success after training, over all seeds."""
    low: float
    """The gain is above this with 97.5 % confidence."""
    high: float
    """The gain is below this with 97.5 % confidence."""
    p_value: float
    """How probable a gain or a loss of this size would be if training changed nothing."""

    @property
    def gain(self) -> float:
        """The difference of the two means."""
        return self.after - self.before


def paired_gain(pairs: Sequence[tuple[Solved, Solved]]) -> Gain:
    """The gain over tasks of one or more runs, each with its success before and after training.

    The interval comes from resampling tasks, each with all its seeds: seeds of one task are not independent. The
    p-value is that of McNemar's exact test for one run whose tasks are solved or not, and of a test that flips the
    signs of the tasks' differences otherwise. Both are the same on every machine.

    >>> before = {"a": 0.0, "b": 0.0, "c": 1.0, "d": 0.0}
    >>> after = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.0}
    >>> found = paired_gain([(before, after)])
    >>> found.gain, found.p_value  # two tasks differ, both for the better: 2 * 0.5 ** 2
    (0.5, 0.5)
    """
    import numpy as np

    tasks = _common_tasks(pairs)
    before_ST = np.array([[run[task] for task in tasks] for run, _ in pairs])
    after_ST = np.array([[run[task] for task in tasks] for _, run in pairs])
    difference_T = (after_ST - before_ST).mean(axis=0)
    low, high = _interval(difference_T)
    is_solved_or_not = len(pairs) == 1 and bool(np.isin([before_ST, after_ST], [0.0, 1.0]).all())
    p_value = _mcnemar(difference_T) if is_solved_or_not else _sign_flips(difference_T)
    return Gain(
        tasks=len(tasks),
        seeds=len(pairs),
        before=float(before_ST.mean()),
        after=float(after_ST.mean()),
        low=low,
        high=high,
        p_value=p_value,
    )


def _common_tasks(pairs: Sequence[tuple[Solved, Solved]]) -> list[str]:
    """The tasks of all evaluations, which must be the same."""
    if not pairs:
        raise DataError("there is no evaluation to compare")
    first = pairs[0][0]
    for solved in (solved for pair in pairs for solved in pair):
        if solved.keys() != first.keys():
            differing = sorted(solved.keys() ^ first.keys())
            raise DataError(
                f"evaluations on different tasks cannot be compared: {len(first)} and {len(solved)} tasks, of which "
                f"{len(differing)} are in one of them only, such as '{differing[0]}'"
            )
    if not first:
        raise DataError("an evaluation without tasks cannot be compared")
    return sorted(first)


def _interval(difference_T: npt.NDArray[np.float64]) -> tuple[float, float]:
    """The 95 % interval of the mean difference, by resampling tasks."""
    import numpy as np

    rng = np.random.default_rng(0)
    means = [
        difference_T[rng.integers(len(difference_T), size=(_CHUNK, len(difference_T)))].mean(axis=1)
        for _ in range(_DRAWS // _CHUNK)
    ]
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return float(low), float(high)


def _mcnemar(difference_T: npt.NDArray[np.float64]) -> float:
    """McNemar's exact test: of the tasks that changed, how many changed for the better."""
    better, worse = int((difference_T > 0).sum()), int((difference_T < 0).sum())
    changed = better + worse
    tail = sum(math.comb(changed, count) for count in range(min(better, worse) + 1))
    p_value: float = 2 * tail / 2**changed
    return min(1.0, p_value)


def _sign_flips(difference_T: npt.NDArray[np.float64]) -> float:
    """How often the mean difference is as large when each task's sign is drawn; the observed signs are one draw."""
    import numpy as np

    observed = abs(float(difference_T.sum())) - 1e-9
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(_DRAWS // _CHUNK):
        signs = rng.integers(2, size=(_CHUNK, len(difference_T))) * 2 - 1
        hits += int((np.abs(signs @ difference_T) >= observed).sum())
    return (hits + 1) / (_DRAWS + 1)
