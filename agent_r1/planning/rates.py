"""Rates of engine and learner from a record, by least squares without negative coefficients."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agent_r1.planning.engine import EngineRates
from agent_r1.planning.workload import Call, RecordedGroup, UpdateCost

Array = NDArray[np.float64]

_FEW_TOKENS_APART = 0.1


@dataclass(frozen=True, slots=True)
class TimedCall:
    """A recorded call with the second, since the beginning of its step, in which it was made."""

    call: Call
    start: float

    @property
    def end(self) -> float:
        """The second in which it was answered."""
        return self.start + self.call.generate


def timeline(groups: Sequence[RecordedGroup], slots: int) -> Iterator[TimedCall]:
    """The calls of one step's groups, whose episodes took `slots` in their order as others ended."""
    free = [0.0] * slots
    for episode in itertools.chain(*groups):
        now = heapq.heappop(free)
        for call in episode.calls:
            now += call.wait
            yield TimedCall(call, now)
            now += call.generate + call.env
        heapq.heappush(free, now)


def fit_engine(steps: Sequence[Sequence[RecordedGroup]], slots: int, engines: int = 1) -> EngineRates:
    """The rates of each of `engines` with which calls take what they took in some steps, each the groups it rolled out.

    A call of n tokens takes `per_call + per_prompt_token * w + n * (base + per_request * r)`: w are the prompt tokens
    that arrived while it ran, its own included, r is how many calls ran beside it on average, itself included.
    """
    columns: list[Array] = []
    seconds: list[Array] = []
    for groups in steps:
        calls = list(timeline(groups, slots))
        starts = np.array([timed.start for timed in calls])
        ends = np.array([timed.end for timed in calls])
        tokens = np.array([timed.call.action_tokens for timed in calls], dtype=np.float64)
        prompts = np.array([timed.call.new_tokens for timed in calls], dtype=np.float64)
        num_running = np.maximum(1.0, _mean_running(starts, ends) / engines)
        arrived = prompts + (_prompt_tokens_meanwhile(starts, ends, prompts) - prompts) / engines
        is_kept = np.array([not timed.call.over_update for timed in calls])
        columns.append(np.stack([np.ones_like(tokens), arrived, tokens, tokens * num_running], 1)[is_kept])
        seconds.append((ends - starts)[is_kept])
    per_call, per_prompt, base, per_request = solve_nonnegative(np.concatenate(columns), np.concatenate(seconds))
    return EngineRates(per_prompt_token=per_prompt, base=base, per_request=per_request, per_call=per_call)


def fit_update(tokens: Sequence[float], seconds: Sequence[float]) -> UpdateCost:
    """What updates cost. Where all had about as many tokens, no part of the cost is independent of them.

    >>> fit_update([100, 200, 300], [2.0, 3.0, 4.0])
    UpdateCost(base=1.0, per_token=0.01)
    """
    x, y = np.array(tokens, dtype=np.float64), np.array(seconds, dtype=np.float64)
    if x.std() < _FEW_TOKENS_APART * max(x.mean(), 1.0):
        return UpdateCost(base=0.0, per_token=float(y.mean() / max(x.mean(), 1.0)))
    base, per_token = solve_nonnegative(np.stack([np.ones_like(x), x], 1), y)
    return UpdateCost(base=round(base, 9), per_token=round(per_token, 12))


def solve_nonnegative(matrix: Array, values: Array) -> list[float]:
    """The least-squares solution without negative entries; exact, for the few columns there are here."""
    width = matrix.shape[1]
    best, smallest = [0.0] * width, float(values @ values)
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-300)
    for chosen in itertools.chain.from_iterable(itertools.combinations(range(width), n) for n in range(1, width + 1)):
        part = matrix[:, chosen] / scale[list(chosen)]
        solution = np.linalg.lstsq(part, values, rcond=None)[0]
        error = float(np.sum((part @ solution - values) ** 2))
        if (solution >= 0.0).all() and error < smallest * (1 - 1e-12):
            smallest, best = error, [0.0] * width
            for index, value in zip(chosen, solution / scale[list(chosen)], strict=True):
                best[index] = float(value)
    return best


def _mean_running(starts: Array, ends: Array) -> Array:
    """How many calls ran during each call, on average over its time, itself included."""
    times = np.concatenate([starts, ends])
    changes = np.concatenate([np.ones_like(starts), -np.ones_like(ends)])
    order = np.argsort(times, kind="stable")
    times, running = times[order], np.cumsum(changes[order])
    area = np.concatenate([[0.0], np.cumsum(running[:-1] * np.diff(times))])
    spans = np.maximum(ends - starts, 1e-12)
    inside: Array = np.interp(ends, times, area) - np.interp(starts, times, area)
    return np.maximum(1.0, inside / spans)


def _prompt_tokens_meanwhile(starts: Array, ends: Array, prompts: Array) -> Array:
    """Prompt tokens of the calls that were made while each call ran, its own included."""
    order = np.argsort(starts, kind="stable")
    total = np.concatenate([[0.0], np.cumsum(prompts[order])])
    first = np.searchsorted(starts[order], starts, side="left")
    last = np.searchsorted(starts[order], ends, side="left")
    tokens: Array = total[np.maximum(last, first + 1)] - total[first]
    return tokens
