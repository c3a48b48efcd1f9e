"""Shares the micro-batches of an update out over ranks: equally many each, of about equal cost at the same time.

All ranks gather each layer's weights together, so they compute in lockstep: what counts is the most expensive
micro-batch of each round. Sorted by cost, a round has neighbours:

    costs 9 8 5 4 1 over two ranks: (9, 8), (5, 4), (1, nothing)

The rank with nothing computes an empty micro-batch, which adds exactly zero. Before that, the most expensive
micro-batches are cut until the last round is full: between rows, or between tries that follow one another in one row.
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
    share: list[MicroBatch] = []
    for first in range(0, len(ordered), size):
        members = ordered[first : first + size]
        # Back and forth: the rank that has the most of one round has the least of the next.
        position = size - 1 - rank if (first // size) % 2 else rank
        share.append(members[position] if position < len(members) else empty_like(members[-1]))
    return share


def _fill_last_round(batches: list[MicroBatch], size: int, cost: Cost) -> list[MicroBatch]:
    while batches and len(batches) % size:
        for index in sorted(range(len(batches)), key=lambda index: cost(batches[index]), reverse=True):
            parts = halved(batches[index])
            if parts is not None:
                batches[index : index + 1] = parts
                break
        else:
            break
    return batches


def halved(batch: MicroBatch) -> tuple[MicroBatch, MicroBatch] | None:
    """A micro-batch in two parts that are about as large; None when all of it depends on its beginning."""
    rows, width = batch.input_ids.shape
    if rows > 1:
        middle = rows // 2
        return _rows_of(batch, 0, middle), _rows_of(batch, middle, rows)
    if batch.position_ids is None or not len(batch.columns_N):
        return None
    # No token sees anything before a token of depth 0. Behind the last action there is only padding.
    roots = (batch.position_ids[0, : int(batch.action_columns_N.max())] == 0).nonzero()[1:, 0]
    if not len(roots):
        return None
    middle = int(roots[(roots - width // 2).abs().argmin()])
    return _columns_of(batch, 0, middle), _columns_of(batch, middle, width)


def _rows_of(batch: MicroBatch, first: int, end: int) -> MicroBatch:
    chosen_N = (batch.rows_N >= first) & (batch.rows_N < end)
    return _with(batch, (slice(first, end), slice(None)), chosen_N, first_row=first)


def _columns_of(batch: MicroBatch, first: int, end: int) -> MicroBatch:
    chosen_N = (batch.columns_N >= first) & (batch.columns_N < end)
    return _with(batch, (slice(None), slice(first, end)), chosen_N, first_column=first)


def empty_like(batch: MicroBatch) -> MicroBatch:
    """The first row of a micro-batch without any action token: its gradient is zero."""
    return _with(batch, (slice(0, 1), slice(None)), torch.zeros_like(batch.rows_N, dtype=torch.bool))


def _with(
    batch: MicroBatch, part: tuple[slice, slice], chosen_N: Tensor, *, first_row: int = 0, first_column: int = 0
) -> MicroBatch:
    """These rows and columns, with the chosen action tokens, which all are in them."""

    def cut(matrix: Tensor | None) -> Tensor | None:
        return None if matrix is None else matrix[part]

    return replace(
        batch,
        input_ids=batch.input_ids[part],
        attention_mask=cut(batch.attention_mask),
        position_ids=cut(batch.position_ids),
        ends=None if batch.ends is None else batch.ends[part] - first_column,
        rows_N=batch.rows_N[chosen_N] - first_row,
        columns_N=batch.columns_N[chosen_N] - first_column,
        action_columns_N=batch.action_columns_N[chosen_N] - first_column,
        targets_N=batch.targets_N[chosen_N],
        tokens_N=batch.tokens_N[chosen_N],
    )
