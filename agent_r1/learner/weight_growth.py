"""Detects exploded weights in the step in which it happens, so that they are never exported as a success.

A loss can stay finite while a learning rate that is far too large makes weights a million times what they were. Healthy
training changes the size of a model's weights by some percent: their size is the norm over all of them, which for
adapters is that of the merged weights. The limit is a hundred times the size at the start: healthy runs stay far below
it, exploded ones pass it at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from agent_r1.errors import DivergenceError
from agent_r1.models import adapter_factors

LARGEST_GROWTH = 100.0


class WeightGrowth:
    """Compares the size of a policy's weights with their size when this was made."""

    def __init__(
        self,
        policy: nn.Module,
        *,
        norm: Callable[[list[Any]], float] | None = None,
        whole: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    ) -> None:
        """`norm` is that of all numbers in a list of tensors, and `whole` makes a tensor whole: where they are
        sharded."""
        self._policy = policy
        self._norm = norm or _norm
        self._whole = whole
        self._frozen = self._norm([parameter for parameter in policy.parameters() if not parameter.requires_grad])
        self._start = self._size()

    def check(self, **rate: float) -> None:
        """Raise `DivergenceError` when the weights have exploded; `rate` is the learning rate under its key's name.

        growth.check(**{"optimizer.learning_rate": 1e-6})
        """
        size = self._size()
        if size <= LARGEST_GROWTH * self._start:
            return
        growth = f"{size / self._start:.3g} times as large as at the start" if math.isfinite(size) else "not finite"
        [(key, used)] = rate.items()
        raise DivergenceError(
            f"the weights of the policy have exploded: they are {growth}, and they are not exported. The learning rate "
            f"is too large: lower {key} (it is {used:g})"
        )

    def _size(self) -> float:
        factors = adapter_factors(self._policy)
        adapters = {id(matrix) for _, up, down in factors for matrix in (up, down)}
        trained = [p for p in self._policy.parameters() if p.requires_grad and id(p) not in adapters]
        return math.hypot(self._frozen, self._norm(trained), self._product_norm(factors))

    def _product_norm(self, factors: list[tuple[float, Tensor, Tensor]]) -> float:
        return _product_norm([(scale, self._whole(up), self._whole(down)) for scale, up, down in factors])


@torch.no_grad()
def _norm(tensors: list[Any]) -> float:
    if not tensors:
        return 0.0
    norms = torch.stack([torch.linalg.vector_norm(tensor, dtype=torch.float32) for tensor in tensors])
    return _total(norms.double().square().sum())


@torch.no_grad()
def _product_norm(factors: list[tuple[float, Tensor, Tensor]]) -> float:
    """The norm of all `scale B A` together, from small products: |B A|^2 is the trace of (B' B) (A A')."""
    if not factors:
        return 0.0
    squares = [
        scale**2 * ((up.double().T @ up.double()) * (down.double() @ down.double().T)).sum()
        for scale, up, down in factors
    ]
    return _total(torch.stack(squares).sum())


def _total(square: Tensor) -> float:
    """The root of a sum of squares; NaN counts as infinite."""
    root = float(square.clamp(min=0.0).sqrt())
    return root if math.isfinite(root) else math.inf
