"""Fuses projections of the same input into one matrix product.

A decoder layer has five products where two are enough: one for queries, keys and values, one for gate and up. Decoding
a small model is bound by the number of kernels; training one by how often the same input is read and its gradient added
up. The modules of the projections stay, under their names, as parts of the fused product. No model code is changed, and
weights are loaded and saved under the same names.

Weights that only an engine writes are concatenated in memory once, and so are their adapters. Trained weights stay
where they are and are concatenated in each pass: a compiler does that while it casts them, which a bfloat16 pass needs
anyway.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from agent_r1.models.unmerged_adapters import AdaptedLinear, LaidAdapters

SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of projections that decoders call one after another on the same input."""
_LINEAR = (nn.Linear, AdaptedLinear)


def fuse_projections(model: nn.Module, *, trained: bool = False) -> int:
    """Fuse all known siblings in a model, in place. Returns the number of fused products.

    A layer without such names, or whose projections are not plain linear layers, is left as it is. With `trained` the
    parameters stay the objects they are, gradients and all.
    """
    count = 0
    for module in model.modules():
        for names in SIBLINGS:
            parts: list[Any] = [getattr(module, name, None) for name in names]
            if all(type(part) in _LINEAR for part in parts) and len({part.bias is None for part in parts}) == 1:
                product = _TrainedProduct(parts) if trained else _laid_product(parts)
                for index, name in enumerate(names):
                    setattr(module, name, product.make_part(index))
                count += 1
    return count


class _Product:
    """A fused product. Not a module: its weights are the parameters of its parts."""

    def __init__(self, parts: list[Any]) -> None:
        self.sizes = [part.out_features for part in parts]
        self.weights: list[Tensor] = [part.weight for part in parts]
        self.biases: list[Tensor | None] = [part.bias for part in parts]
        self.adapters: list[tuple[Tensor, Tensor] | None] = [None for _ in parts]
        self.input: Tensor | None = None
        self.outputs: tuple[Tensor, ...] = ()

    def joined(self) -> tuple[Tensor, Tensor | None]:
        """The weight and the bias of the product."""
        biases = [bias for bias in self.biases if bias is not None]
        return torch.cat(self.weights), torch.cat(biases) if biases else None

    def make_part(self, index: int) -> _Part:
        """The module that replaces one of the projections."""
        return _Part(self, index)

    def whole(self, hidden: Tensor) -> Tensor:
        """The outputs of all projections, side by side."""
        return nn.functional.linear(hidden, *self.joined())

    def part(self, index: int, hidden: Tensor) -> Tensor:
        """The output of one projection; the product is computed when the first projection is called."""
        if self.input is not hidden:
            joint = self.whole(hidden)
            self.input, self.outputs = hidden, torch.split(joint, self.sizes, dim=-1)
        output = self.outputs[index]
        if index == len(self.sizes) - 1:
            self.input, self.outputs = None, ()  # keep no tensor alive
        return output


class _TrainedProduct(_Product):
    """A product of trained weights. It reads them from its parts in each pass: sharding replaces a module's parameters
    by others, and those that were there before would stay untrained."""

    def __init__(self, parts: list[Any]) -> None:
        super().__init__(parts)
        self._parts: list[_Part] = []

    def make_part(self, index: int) -> _Part:
        """The module that replaces one of the projections; they are made in order."""
        self._parts.append(super().make_part(index))
        if len(self._parts) == len(self.sizes):
            self.weights, self.biases = [], []
        return self._parts[-1]

    def joined(self) -> tuple[Tensor, Tensor | None]:
        """The weight and the bias of the product."""
        biases = [part.bias for part in self._parts if part.bias is not None]
        return torch.cat([part.weight for part in self._parts]), torch.cat(biases) if biases else None


class _LaidProduct(_Product):
    """A product whose weight is one parameter (of fixed shape to a compiler), with the parts' weights as views."""

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


class _AdaptedProduct(_LaidProduct):
    """One product of several projections, some with adapters, which are laid out beside the weights."""

    def __init__(self, parts: list[Any]) -> None:
        super().__init__(parts)
        adapters = [(part.lora_A, part.lora_B) if isinstance(part, AdaptedLinear) else None for part in parts]
        self._laid = LaidAdapters(self.weights, [0 if adapter is None else len(adapter[0]) for adapter in adapters])
        self.weights = [*self._laid.weights]
        self._weight = self._laid.joint
        for index, (adapter, *views) in enumerate(zip(adapters, self._laid.downs, self._laid.ups, strict=True)):
            if adapter is not None:
                for view, matrix in zip(views, adapter, strict=True):
                    view.copy_(matrix)
                self.adapters[index] = (views[0], views[1])

    def whole(self, hidden: Tensor) -> Tensor:
        """The outputs of all projections, side by side."""
        return self._laid.product(hidden, self._bias)


def _laid_product(parts: list[Any]) -> _LaidProduct:
    return (_AdaptedProduct if any(isinstance(part, AdaptedLinear) for part in parts) else _LaidProduct)(parts)


class _Part(nn.Module):
    """Replaces a linear layer."""

    def __init__(self, product: _Product, index: int) -> None:
        super().__init__()
        self._product, self._index = product, index
        self.weight, self.bias = product.weights[index], product.biases[index]
        adapter = product.adapters[index]
        if adapter is not None:
            self.lora_A, self.lora_B = adapter

    def forward(self, hidden: Tensor) -> Tensor:
        """The projection of hidden states."""
        return self._product.part(self._index, hidden)
