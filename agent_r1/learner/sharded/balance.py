"""Shares the micro-batches of an update out over ranks: equally many each, of about equal cost at the same time.

All ranks gather each layer's weights together, so they compute in lockstep: what counts is the most expensive
micro-batch of each round. Sorted by cost, a round has neighbours:

    costs 9 8 5 4 1 over two ranks: (9, 8), (5, 4), (1, nothing)

The rank with nothing computes an empty micro-batch, which adds exactly zero. Before that, micro-batches of several rows
are cut until the last round is full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor

from agent_r1.learner.packing.samples import MicroBatch

Cost = Callable[[MicroBatch], float]


def token_cost(hidden_size: int) -> Cost:
    """About how long a micro-batch takes, in tokens times operations: a layer spends 24 h^2 operations per token on its
    matrices and 4 h T on attention over a row of T tokens."""

    def cost(batch: MicroBatch) -> float:
        rows, width = batch.input_ids.shape
        return rows * width * (6.0 * hidden_size + width)

    return cost


def share_out(batches: Iterable[MicroBatch], *, rank: int, size: int, cost: Cost) -> list[MicroBatch]:
    """The micro-batches of one of `size` ranks; every rank gets as many."""
    ordered = sorted(_fill_last_round(list(batches), size, cost), key=cost, reverse=True)
    own: list[MicroBatch] = []
    for first in range(0, len(ordered), size):
        members = ordered[first : first + size]
        # Back and forth: the rank that has the most of one round has the least of the next.
        position = size - 1 - rank if (first // size) % 2 else rank
        own.append(members[position] if position < len(members) else empty_like(members[-1]))
    return own


def _fill_last_round(batches: list[MicroBatch], size: int, cost: Cost) -> list[MicroBatch]:
    while batches and len(batches) % size:
        several = [index for index, batch in enumerate(batches) if len(batch.input_ids) > 1]
        if not several:
            break
        index = max(several, key=lambda index: cost(batches[index]))
        middle = len(batches[index].input_ids) // 2
        batches[index : index + 1] = [rows_of(batches[index], 0, middle), rows_of(batches[index], middle, None)]
    return batches


def rows_of(batch: MicroBatch, first: int, end: int | None) -> MicroBatch:
    """A micro-batch of some of the rows."""
    end = len(batch.input_ids) if end is None else end
    chosen_N = (batch.rows_N >= first) & (batch.rows_N < end)
    return _with(batch, slice(first, end), chosen_N, first)


def empty_like(batch: MicroBatch) -> MicroBatch:
    """The first row of a micro-batch without any action token: its gradient is zero."""
    return _with(batch, slice(0, 1), torch.zeros_like(batch.rows_N, dtype=torch.bool), 0)


def _with(batch: MicroBatch, rows: slice, chosen_N: Tensor, first: int) -> MicroBatch:
    def cut(matrix: Tensor | None) -> Tensor | None:
        return None if matrix is None else matrix[rows]

    return replace(
        batch,
        input_ids=batch.input_ids[rows],
        attention_mask=cut(batch.attention_mask),
        position_ids=cut(batch.position_ids),
        ends=cut(batch.ends),
        rows_N=batch.rows_N[chosen_N] - first,
        columns_N=batch.columns_N[chosen_N],
        action_columns_N=batch.action_columns_N[chosen_N],
        targets_N=batch.targets_N[chosen_N],
        tokens_N=batch.tokens_N[chosen_N],
    )
