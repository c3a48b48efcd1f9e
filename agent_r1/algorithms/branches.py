"""Sums along the branches of an episode: steps that continue the same step stand side by side, not one after the other.

`parents` holds, for each entry, the index of the entry it continues (always an earlier one), or -1. With several
continuations an entry takes their mean: what follows it is as good as its continuations are on average, however many
there are. Where every entry has at most one continuation this is the plain recurrence of `scan`.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from agent_r1.algorithms.lazy_torch import torch

if TYPE_CHECKING:
    from torch import Tensor


def tree_scan(inputs: Tensor, decay: float, parents: Tensor) -> Tensor:
    """`y[i] = inputs[i] + decay * mean(y[c] for c that continue i)`.

    >>> tree_scan(torch.tensor([0.0, 1.0, 3.0]), 0.5, torch.tensor([-1, 0, 0]))
    tensor([1., 1., 3.])
    """
    result = inputs.clone()
    counts = _num_continuations(parents)
    for level in _levels_from_the_ends(parents):
        above = parents[level]
        result.index_add_(0, above, decay * result[level] / counts[above].to(inputs.dtype))
    return result


def mean_of_continuations(values: Tensor, parents: Tensor, after_last: Tensor) -> Tensor:
    """The mean of the values of each entry's continuations; `after_last` [one per entry] where there are none.

    >>> mean_of_continuations(torch.tensor([9.0, 1.0, 3.0]), torch.tensor([-1, 0, 0]), torch.zeros(3))
    tensor([2., 0., 0.])
    """
    counts = _num_continuations(parents)
    continues = parents >= 0
    sums = torch.zeros_like(values).index_add_(0, parents[continues], values[continues])
    return torch.where(counts > 0, sums / counts.clamp(min=1).to(values.dtype), after_last)


def depths(parents: Tensor) -> Tensor:
    """How many entries each one continues, directly or not: [0, 1, 1] for the parents [-1, 0, 0]."""
    result: list[int] = []
    for parent in parents.tolist():
        result.append(result[parent] + 1 if parent >= 0 else 0)
    return torch.tensor(result, dtype=torch.long)


def token_parents(parents_S: Tensor, lengths_S: Tensor) -> Tensor:
    """The parents of tokens: the token before in the step, and for a step's first token the last token of the step it
    continues. Steps without tokens are passed over.

    >>> token_parents(torch.tensor([-1, 0, 0]), torch.tensor([2, 1, 2]))
    tensor([-1,  0,  1,  1,  3])
    """
    lengths = lengths_S.tolist()
    last = [end - 1 for end in accumulate(lengths)]
    above = nearest_with_tokens(parents_S, lengths_S)
    result: list[int] = []
    for step, length in enumerate(lengths):
        if length:
            parent = above[step]
            first = len(result)
            result += [last[parent] if parent >= 0 else -1, *range(first, first + length - 1)]
    return torch.tensor(result, dtype=torch.long)


def nearest_with_tokens(parents_S: Tensor, lengths_S: Tensor) -> list[int]:
    """For each step the nearest step above it that has tokens; -1 for none."""
    parents, lengths = parents_S.tolist(), lengths_S.tolist()
    above: list[int] = []
    for parent in parents:
        above.append(parent if parent < 0 or lengths[parent] else above[parent])
    return above


def first_tokens_after(parents_S: Tensor, lengths_S: Tensor) -> list[int]:
    """For each step without tokens the first token of what continues it, of the earliest where several do; -1 for none,
    and for steps that have tokens.

    >>> first_tokens_after(torch.tensor([-1, 0, 1]), torch.tensor([0, 0, 2]))
    [0, 0, -1]
    """
    parents, lengths = parents_S.tolist(), lengths_S.tolist()
    starts = (lengths_S.cumsum(0) - lengths_S).tolist()
    after = [-1] * len(parents)
    for step in reversed(range(len(parents))):
        parent, first = parents[step], starts[step] if lengths[step] else after[step]
        if parent >= 0 and not lengths[parent] and first >= 0:
            after[parent] = first
    return after


def _num_continuations(parents: Tensor) -> Tensor:
    return torch.bincount(parents[parents >= 0], minlength=len(parents))


def _levels_from_the_ends(parents: Tensor) -> list[Tensor]:
    """The entries that continue others, the deepest level first."""
    depth = depths(parents)
    order = torch.argsort(depth, descending=True, stable=True)
    sizes = torch.bincount(depth).flip(0).tolist() if len(depth) else []
    return list(torch.split(order, sizes))[:-1] if sizes else []
