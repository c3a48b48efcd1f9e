"""Minibatches: which samples of a batch one update computes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agent_r1.algorithms import StepTable
from agent_r1.learner.packing.samples import Sample


@dataclass(frozen=True, kw_only=True, slots=True)
class Minibatch:
    """The samples of one update."""

    samples: Sequence[Sample]
    """All samples of the batch."""
    indices: list[int]
    """The indices of the update's samples, without those that have no token to learn from."""
    tokens_N: Tensor
    """The indices of their action tokens in the batch's flat arrays, in order."""


def make_minibatch(table: StepTable, samples: Sequence[Sample], chosen: Sequence[int], used_N: Tensor) -> Minibatch:
    """The chosen samples that have a token in `used_N`."""
    has_used_S = torch.zeros(len(table.lengths_S)).index_add(0, table.step_of_token_N, used_N.float()) > 0
    in_update_S = torch.zeros_like(has_used_S)
    in_update_S[list(chosen)] = True
    in_update_S &= has_used_S
    return Minibatch(
        samples=samples,
        indices=in_update_S.nonzero().squeeze(1).tolist(),
        tokens_N=in_update_S[table.step_of_token_N].nonzero().squeeze(1),
    )


def split_by_group(
    table: StepTable, chosen: Sequence[int], num_parts: int, rng: random.Random | None = None
) -> list[list[int]]:
    """Split the chosen samples into parts of whole groups, in order or shuffled by `rng`; empty parts are left out.

    Samples of groups 0 0 1 2 in two parts: groups 0 and 2 are one part, group 1 is the other.
    """
    group_S = table.group_R[table.trajectory_S].tolist()
    groups = sorted({group_S[index] for index in chosen})
    if rng is not None:
        rng.shuffle(groups)
    part_of = {group: position % num_parts for position, group in enumerate(groups)}
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    for index in chosen:
        parts[part_of[group_S[index]]].append(index)
    return [part for part in parts if part]
