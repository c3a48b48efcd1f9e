"""Linear layers on CPU: fast for few rows, and batch-invariant.

Matrix libraries choose their kernels by the shape of the product. Two of their choices hurt here. Below 64 rows, the
product of rows with a transposed matrix takes twice as long as the transposed product. And a long sum is split into
pieces whose lengths depend on the number of rows, so logits would depend on batch composition. Here few rows always use
the fast orientation, and long sums are always split at the same indices.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

FEW_ROWS = 64
"""Below this number of rows the transposed product is faster."""
MAX_SUM = 768
"""Longer sums are split here; libraries keep sums of this length in one piece."""
MIN_OUTPUTS = 16
"""Narrower layers are left alone: for few columns libraries use other kernels, and the layers cost little anyway."""


def batch_invariant_linear(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`nn.functional.linear` for at least 16 rows, with results that do not depend on the number of rows.

    >>> hidden, weight = torch.randn(48, 2000), torch.randn(32, 2000)
    >>> torch.equal(batch_invariant_linear(hidden, weight)[:16], batch_invariant_linear(hidden[:16], weight))
    True
    """
    rows = hidden.flatten(0, -2)
    output = _product(weight, rows.T).T.contiguous() if len(rows) < FEW_ROWS else _product(rows, weight.T)
    if bias is not None:
        output += bias
    return output.view(*hidden.shape[:-1], -1)


def use_batch_invariant_products(model: nn.Module) -> None:
    """Make all linear layers of a float32 model on CPU batch-invariant, in place; parameters stay the same objects.

    Tied layers (the output layer and the embeddings) stay tied.
    """
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and child.out_features >= MIN_OUTPUTS:
                setattr(module, name, BatchInvariantLinear(child))


class BatchInvariantLinear(nn.Module):
    """Replaces a linear layer and keeps its parameters."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight = layer.weight
        self.bias = cast("nn.Parameter | None", layer.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """The projection of hidden states."""
        return batch_invariant_linear(hidden, self.weight, self.bias)


def _product(left: Tensor, right: Tensor) -> Tensor:
    output = torch.mm(left[:, :MAX_SUM], right[:MAX_SUM])
    for start in range(MAX_SUM, left.shape[1], MAX_SUM):
        output.addmm_(left[:, start : start + MAX_SUM], right[start : start + MAX_SUM])
    return output
