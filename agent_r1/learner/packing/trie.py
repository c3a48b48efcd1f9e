"""Packing samples as token tries: every distinct prefix is computed once.

A step's row repeats all that came before it, and the members of a group repeat their prompt. After sorting, equal
prefixes are adjacent: each sample adds only what its predecessor does not share, and the row is the depth-first
walk of a trie. Samples (1 2 3), (1 2 4 5) and (7) become

    token     1  2  3  4  5  7
    position  0  1  2  2  3  0      depth: the model's position id
    end       5  5  3  5  5  6      where the token's subtree ends

Token j is on the path of token i, and so visible to it, exactly when `j <= i < end[j]`. Everything downstream gathers
by index and is independent of tries. A trie larger than a row is cut, and the shared prefix repeated in the next
row; rewritten history simply branches.

Tries of one micro-batch are rows of it, or lie end to end in one row (`end_to_end`): no token of a trie is visible from
another one either way.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch

from agent_r1.learner.packing.image_tokens import refuse_image_targets, take_images
from agent_r1.learner.packing.samples import MicroBatch, Sample, first_tokens, refuse_too_long
from agent_r1.models import round_up
from agent_r1.types import TokenIds

Ids = npt.NDArray[np.int64]

LEAST_FILLED = 0.75
"""Rows share a micro-batch while at least this fraction of each is tokens, not padding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrieRow:
    """One row: a few samples as the depth-first walk of their trie."""

    token_ids: Ids
    """Each distinct prefix's last token, once."""
    positions: Ids
    """The depth of each token in the trie."""
    ends: Ids
    """Where each token's subtree ends."""
    members: list[tuple[int, Ids]]
    """The samples, and where each one's tokens are in the row."""

    def __len__(self) -> int:
        return len(self.token_ids)


class _OpenRow:
    """A row under construction."""

    def __init__(self) -> None:
        self.token_ids: list[Ids] = []
        self.positions: list[Ids] = []
        self.closings: list[tuple[Ids, int]] = []
        self.members: list[tuple[int, Ids]] = []
        self.path: Ids = np.zeros(0, dtype=np.int64)
        self.size = 0

    def add(self, index: int, ids: Ids, shared: int) -> None:
        """Append what the sample does not share with the one before it."""
        new = len(ids) - shared
        self.closings.append((self.path[shared:], self.size))
        self.path = np.concatenate([self.path[:shared], np.arange(self.size, self.size + new)])
        self.token_ids.append(ids[shared:])
        self.positions.append(np.arange(shared, len(ids)))
        self.members.append((index, self.path))
        self.size += new

    def close(self) -> TrieRow:
        """The finished row."""
        ends = np.full(self.size, self.size, dtype=np.int64)
        for tokens, end in self.closings:
            ends[tokens] = end
        return TrieRow(
            token_ids=np.concatenate(self.token_ids),
            positions=np.concatenate(self.positions),
            ends=ends,
            members=self.members,
        )


def build_rows(samples: Sequence[Sample], chosen: Sequence[int], *, row_tokens: int) -> list[TrieRow]:
    """The chosen samples as trie rows of at most `row_tokens` tokens (or of one sample that is longer)."""
    ids, word = _arrays(samples, chosen)
    # Big-endian bytes sort as the ids do, at the speed of memcmp.
    ordered = sorted(ids, key=lambda index: (ids[index].astype(word).tobytes(), index))
    rows: list[TrieRow] = []
    row, before = _OpenRow(), np.zeros(0, dtype=np.int64)
    for index in ordered:
        shared = _common_prefix(before, ids[index]) if row.size else 0
        if row.size and row.size + len(ids[index]) - shared > row_tokens:
            rows.append(row.close())
            row, shared = _OpenRow(), 0
        row.add(index, ids[index], shared)
        before = ids[index]
    return [*rows, row.close()] if row.size else rows


def _arrays(samples: Sequence[Sample], chosen: Sequence[int]) -> tuple[dict[int, Ids], str]:
    """The token ids of the chosen samples that have actions, and the type of words that hold all of them.

    A step usually continues the one before it. From the last to the first, most are then the beginning of an array that
    is there already.
    """
    arrays: dict[int, Ids] = {}
    longer: TokenIds = ()
    array_of_longer, word = np.zeros(0, dtype=np.int64), ">u4"
    for index in reversed(chosen):
        token_ids = samples[index].token_ids
        if not samples[index].action_positions:
            continue
        if longer[: len(token_ids)] != token_ids:
            # Through an array of machine words: several times faster than from a tuple.
            try:
                longer, array_of_longer = token_ids, np.array(array("I", token_ids), dtype=np.int64)
            except OverflowError:  # some are image tokens
                longer, array_of_longer, word = token_ids, np.array(array("q", token_ids), dtype=np.int64), ">u8"
        arrays[index] = array_of_longer[: len(token_ids)]
    return arrays, word


def _common_prefix(left: Ids, right: Ids) -> int:
    """`types.common_prefix` of arrays, without a loop over their ids: 2 for (1, 2, 3) and (1, 2, 4, 5)."""
    shorter = min(len(left), len(right))
    if left.base is not None and left.base is right.base:  # both are beginnings of one array
        return shorter
    differing = np.flatnonzero(left[:shorter] != right[:shorter])
    return int(differing[0]) if len(differing) else shorter


def pack_tries(
    samples: Sequence[Sample],
    chosen: Sequence[int],
    *,
    max_tokens: int,
    row_tokens: int | None = None,
    width_multiple: int = 1,
    portion_tokens: int | None = None,
    end_to_end: bool = False,
) -> Iterator[MicroBatch]:
    """Micro-batches of trie rows, at most `max_tokens` tokens each, padding included.

    They are made lazily, so a GPU computes the first while the second is made; with `portion_tokens` the first is made
    after that many tokens of samples were sorted, not after all of them. `row_tokens`
    bounds a single row (by default the whole micro-batch): attention with a dense mask costs the square of a row's
    length, so several shorter rows are faster on a CPU. Widths are padded to `width_multiple`. With `end_to_end` a
    micro-batch is one row, in which such rows follow one another: blocks of the mask that no token sees cost
    nothing, and micro-batches then differ in their width only, for which one compilation is enough.
    """
    refuse_too_long(samples, chosen, max_tokens)
    starts = first_tokens(samples)
    collate = partial(_collate, samples, starts=starts, width_multiple=width_multiple, end_to_end=end_to_end)
    current: list[TrieRow] = []
    for rows in _portions(samples, chosen, min(max_tokens, row_tokens or max_tokens), portion_tokens):
        for row in sorted(rows, key=len, reverse=True):
            lengths = [len(row), *map(len, current)]
            if end_to_end:
                is_full = round_up(sum(lengths), width_multiple) > max_tokens
            else:
                wasteful = min(lengths) < LEAST_FILLED * max(lengths)
                is_full = wasteful or len(lengths) * round_up(max(lengths), width_multiple) > max_tokens
            if current and is_full:
                yield collate(current)
                current = []
            current.append(row)
    if current:
        yield collate(current)


def _portions(
    samples: Sequence[Sample], chosen: Sequence[int], row_tokens: int, portion_tokens: int | None
) -> Iterator[list[TrieRow]]:
    """The rows of one portion of the samples after another.

    A portion's last row is seldom full: its samples wait for the next portion. They may be all of it, when everything
    shares one long prefix; a portion is then at least as long as what waits, so that sorting again stays cheap.
    """
    waiting: list[int] = []
    waited = fresh = 0
    for index in chosen:
        waiting.append(index)
        fresh += len(samples[index])
        if portion_tokens is not None and fresh >= max(portion_tokens, waited):
            rows = build_rows(samples, waiting, row_tokens=row_tokens)
            yield rows[:-1]
            waiting = sorted(member for row in rows[-1:] for member, _ in row.members)
            waited, fresh = sum(len(samples[member]) for member in waiting), 0
    yield build_rows(samples, waiting, row_tokens=row_tokens)


def _collate(
    samples: Sequence[Sample], tries: Sequence[TrieRow], *, starts: Sequence[int], width_multiple: int, end_to_end: bool
) -> MicroBatch:
    """Stack tries, or join them end to end; padding attends to itself only, and no token attends to padding."""
    places = [(0, first) for first in _first_columns(tries)] if end_to_end else [(n, 0) for n in range(len(tries))]
    num_rows = 1 if end_to_end else len(tries)
    width = round_up(max(first + len(trie) for (_, first), trie in zip(places, tries, strict=True)), width_multiple)
    input_ids = np.zeros((num_rows, width), dtype=np.int64)
    position_ids = np.zeros((num_rows, width), dtype=np.int64)
    ends = np.tile(np.arange(1, width + 1), (num_rows, 1))
    members: list[tuple[int, TokenIds, Ids]] = []
    row_of, before, own_columns, tokens = [], [], [], []
    for (number, first), trie in zip(places, tries, strict=True):
        columns = slice(first, first + len(trie))
        input_ids[number, columns] = trie.token_ids
        position_ids[number, columns] = trie.positions
        ends[number, columns] = first + trie.ends
        for index, path in trie.members:
            actions = np.array(samples[index].action_positions, dtype=np.int64)
            row_of.append(np.full(len(actions), number))
            before.append(first + path[actions - 1])
            own_columns.append(first + path[actions])
            tokens.append(np.arange(starts[index], starts[index] + len(actions)))
            members.append((number, samples[index].token_ids, first + path))
    rows, action_columns = np.concatenate(row_of), np.concatenate(own_columns)
    targets_N = torch.from_numpy(input_ids[rows, action_columns])
    images = take_images(input_ids, position_ids, members)
    if images is not None:
        refuse_image_targets(targets_N)
    return MicroBatch(
        input_ids=torch.from_numpy(input_ids),
        position_ids=torch.from_numpy(position_ids),
        ends=torch.from_numpy(ends),
        rows_N=torch.from_numpy(rows),
        columns_N=torch.from_numpy(np.concatenate(before)),
        action_columns_N=torch.from_numpy(action_columns),
        targets_N=targets_N,
        tokens_N=torch.from_numpy(np.concatenate(tokens)),
    ).placing(images)


def _first_columns(tries: Sequence[TrieRow]) -> list[int]:
    """Where each trie begins in a row that holds one after the other."""
    return [0, *accumulate(len(trie) for trie in tries[:-1])]
