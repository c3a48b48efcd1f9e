"""`Peers`: the processes that compute an update together, as the learner sees them. By default there is only one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from agent_r1.learner.packing.samples import MicroBatch


class Peers:
    """One process: it computes all micro-batches itself, and its sums are the totals."""

    def share(self, batches: Iterable[MicroBatch]) -> Iterable[MicroBatch]:
        """The micro-batches that this process computes. Every process gives all of them, in the same order, and gets
        equally many."""
        return batches

    def total(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        return tensor

    def totals(self, sums: Mapping[str, float], *, equal: Sequence[str] = ()) -> dict[str, float]:
        """Sums by name, added up over all processes; a process may lack some. Those named in `equal` are the same
        everywhere and are not added."""
        return dict(sums)

    def placed(self, rows: Tensor, at: Tensor, count: int) -> Tensor:
        """The `count` rows of all processes, of which this one has those at the indices `at`."""
        return rows

    def together(self, passes: list[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
        """The recorded passes of all processes, in the order of the updates."""
        return passes

    def clip(self, parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
        """Scale the gradients of the update so that their norm is at most `max_norm`; returns the norm before."""
        return torch.nn.utils.clip_grad_norm_(list(parameters), max_norm)


ONE_PROCESS = Peers()
