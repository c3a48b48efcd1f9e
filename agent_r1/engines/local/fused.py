"""Projections that read the same input as one matrix product.

A decoder layer has five products where two would do: one for queries, keys and values, one for gate and up. Decoding a
small model is bound by the number of kernels; training one by how often the same input is read, and its gradient added
up. The modules that stood for the projections stay, under their names, as parts of the one product. No model code is
changed, and weights are still loaded and saved by the names they had.

Weights that only an engine writes are laid side by side in memory once. Weights that are trained stay where they are
and are joined in each pass: a compiler does so while it casts them, which a pass in bfloat16 has to do anyway.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of projections that decoders call one after the other on the same input."""


def fuse_projections(model: nn.Module, *, trained: bool = False) -> int:
    """Fuse all known siblings in a model, in place; gives how many products were made of them.

    A layer without such names, or whose projections are not plain linear layers, is left as it is. With `trained` the
    parameters stay the objects they are, gradients and all.
    """
    count = 0
    for module in model.modules():
        for names in SIBLINGS:
            parts: list[Any] = [getattr(module, name, None) for name in names]
            if all(type(part) is nn.Linear for part in parts) and len({part.bias is None for part in parts}) == 1:
                product = _Product(parts) if trained else _LaidProduct(parts)
                for index, name in enumerate(names):
                    setattr(module, name, _Part(product, index))
                count += 1
    return count


class _Product:
    """The one product. Not a module: its weights are its parts' parameters."""

    def __init__(self, parts: list[Any]) -> None:
        self.sizes = [part.out_features for part in parts]
        self.weights: list[Tensor] = [part.weight for part in parts]
        self.biases: list[Tensor | None] = [part.bias for part in parts]
        self.input: Tensor | None = None
        self.outputs: tuple[Tensor, ...] = ()

    def joined(self) -> tuple[Tensor, Tensor | None]:
        """The weight and the bias of the product."""
        biases = [bias for bias in self.biases if bias is not None]
        return torch.cat(self.weights), torch.cat(biases) if biases else None

    def part(self, index: int, hidden: Tensor) -> Tensor:
        """The part of the output that a projection gives; computed when the first of them asks."""
        if self.input is not hidden:
            joint = nn.functional.linear(hidden, *self.joined())
            self.input, self.outputs = hidden, torch.split(joint, self.sizes, dim=-1)
        output = self.outputs[index]
        if index == len(self.sizes) - 1:
            self.input, self.outputs = None, ()  # nothing is kept alive
        return output


class _LaidProduct(_Product):
    """A product whose weight is one parameter (to a compiler: of fixed shape), and its parts' are views of it."""

    def __init__(self, parts: list[Any]) -> None:
        super().__init__(parts)
        with torch.no_grad():
            weight, bias = super().joined()
            self._weight = nn.Parameter(weight, requires_grad=False)
            self._bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.weights = self._views(self._weight)
        if self._bias is not None:
            self.biases = [*self._views(self._bias)]

    def joined(self) -> tuple[Tensor, Tensor | None]:
        """The weight and the bias of the product."""
        return self._weight, self._bias

    def _views(self, whole: Tensor) -> list[Tensor]:
        return [nn.Parameter(view, requires_grad=False) for view in torch.split(whole, self.sizes)]


class _Part(nn.Module):
    """Stands where a linear layer stood."""

    def __init__(self, product: _Product, index: int) -> None:
        super().__init__()
        self._product, self._index = product, index
        self.weight, self.bias = product.weights[index], product.biases[index]

    def forward(self, hidden: Tensor) -> Tensor:
        """The projection of hidden states."""
        return self._product.part(self._index, hidden)
