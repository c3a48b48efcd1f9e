"""Linear layers on CPU: quick for few rows, and the same row, bit for bit, whatever other rows there are.

Matrix libraries choose their kernels by the shape of the product. Two of their choices hurt here. Below 64 rows, the
product of rows with a transposed matrix takes twice as long as the transposed product. And a long sum is split in
pieces whose lengths depend on the number of rows, so that a request's logits would depend on its company. Here few rows
are always multiplied the quick way round, and long sums are always split at the same places.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

FEW_ROWS = 64
"""Below so many rows the transposed product is quicker."""
LONGEST_SUM = 768
"""Products over more terms are split here; libraries keep sums this long in one piece."""
FEWEST_OUTPUTS = 16
"""Narrower layers are left alone: with so few columns libraries use other kernels, and they cost nothing anyway."""


def batch_invariant_linear(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`nn.functional.linear` for rows of at least 16 whose results do not depend on how many they are.

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
    """Let all linear layers of a model that computes in float32 on CPU multiply so, in place; parameters stay the same.

    A layer that is tied to another (the output layer to the embeddings) stays tied.
    """
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and child.out_features >= FEWEST_OUTPUTS:
                setattr(module, name, SteadyLinear(child))


class SteadyLinear(nn.Module):
    """Stands where a linear layer stood, with its parameters."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight = layer.weight
        self.bias = cast("nn.Parameter | None", layer.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """The projection of hidden states."""
        return batch_invariant_linear(hidden, self.weight, self.bias)


def _product(left: Tensor, right: Tensor) -> Tensor:
    output = torch.mm(left[:, :LONGEST_SUM], right[:LONGEST_SUM])
    for start in range(LONGEST_SUM, left.shape[1], LONGEST_SUM):
        output.addmm_(left[:, start : start + LONGEST_SUM], right[start : start + LONGEST_SUM])
    return output
