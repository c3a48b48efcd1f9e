"""Projections that read the same input as one matrix product.

Decoding a small model is bound by the number of kernels, and a decoder layer has five products where two would do: one
for queries, keys and values, one for gate and up. Their weights are laid side by side in memory; the modules that stood
for them stay, under their names, as parts of the one product. No model code is changed, and weights are still loaded by
the names they had.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of projections that decoders call one after the other on the same input."""


def fuse_projections(model: nn.Module) -> int:
    """Fuse all known siblings in a model, in place; gives how many products were made of them.

    A layer without such names, or whose projections are not plain linear layers, is left as it is.
    """
    count = 0
    for module in model.modules():
        for names in SIBLINGS:
            parts: list[Any] = [getattr(module, name, None) for name in names]
            if all(type(part) is nn.Linear for part in parts) and len({part.bias is None for part in parts}) == 1:
                product = _Product(parts)
                for index, name in enumerate(names):
                    setattr(module, name, _Part(product, index))
                count += 1
    return count


class _Product:
    """The one product. Not a module: its weights are its parts' parameters."""

    def __init__(self, parts: list[Any]) -> None:
        self.sizes = [part.out_features for part in parts]
        with torch.no_grad():
            self.weight = nn.Parameter(torch.cat([part.weight for part in parts]), requires_grad=False)
            self.bias: nn.Parameter | None = None
            if parts[0].bias is not None:
                self.bias = nn.Parameter(torch.cat([part.bias for part in parts]), requires_grad=False)
        self.input: Tensor | None = None
        self.outputs: tuple[Tensor, ...] = ()

    def part(self, index: int, hidden: Tensor) -> Tensor:
        """The part of the output that a projection gives; computed when the first of them asks."""
        if self.input is not hidden:
            joint = nn.functional.linear(hidden, self.weight, self.bias)
            self.input, self.outputs = hidden, torch.split(joint, self.sizes, dim=-1)
        output = self.outputs[index]
        if index == len(self.sizes) - 1:
            self.input, self.outputs = None, ()  # nothing is kept alive
        return output


class _Part(nn.Module):
    """Stands where a linear layer stood; its parameters are views of the product's."""

    def __init__(self, product: _Product, index: int) -> None:
        super().__init__()
        self._product, self._index = product, index
        start = sum(product.sizes[:index])
        self.weight = nn.Parameter(product.weight[start : start + product.sizes[index]], requires_grad=False)
        self.bias: nn.Parameter | None = None
        if product.bias is not None:
            self.bias = nn.Parameter(product.bias[start : start + product.sizes[index]], requires_grad=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """The projection of hidden states."""
        return self._product.part(self._index, hidden)
