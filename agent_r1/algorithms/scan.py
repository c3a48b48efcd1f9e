"""Linear recurrences over ragged segments, without a loop over positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_r1.algorithms.lazy_torch import torch

if TYPE_CHECKING:
    from torch import Tensor


def reverse_scan(inputs: Tensor, decay: float, segments: Tensor) -> Tensor:
    """`y[i] = inputs[i] + decay * y[i + 1]` within each segment (a run of equal, adjacent ids).

    >>> reverse_scan(torch.tensor([1.0, 1.0, 5.0]), 0.5, torch.tensor([0, 0, 1]))
    tensor([1.5000, 1.0000, 5.0000])

    Doubling: after round k each entry holds the sum over its next 2^k entries, so segments of length L need log2(L)
    rounds, each one vectorised over the whole batch.
    """
    total = len(inputs)
    if total == 0:
        return inputs.clone()
    result = inputs.clone()
    ends = torch.ones(total, dtype=torch.bool)
    ends[:-1] = segments[1:] != segments[:-1]
    positions = torch.arange(total)
    end_of = torch.where(ends, positions, total)
    end_of = end_of.flip(0).cummin(0).values.flip(0)
    left = end_of - positions
    longest = int(left.max())
    shift, factor = 1, decay
    while shift <= longest:
        carried = torch.where(left[: total - shift] >= shift, result[shift:], result.new_zeros(()))
        result[: total - shift] = result[: total - shift] + factor * carried
        shift, factor = 2 * shift, factor * factor
    return result


def next_in_segment(values: Tensor, segments: Tensor, after_last: Tensor) -> Tensor:
    """Each entry's successor within its segment; `after_last` [one per entry] where there is none.

    >>> next_in_segment(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 0, 1]), torch.tensor([9.0, 9.0, 9.0]))
    tensor([2., 9., 9.])
    """
    following = after_last.clone()
    if len(values) > 1:
        same = segments[1:] == segments[:-1]
        following[:-1] = torch.where(same, values[1:], after_last[:-1])
    return following
