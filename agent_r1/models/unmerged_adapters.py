"""Linear layers with unmerged LoRA adapters, for an engine whose weights are too coarse to merge them into.

An adapter changes a layer's weight by far less than the weight's size. Added to a bfloat16 weight, which has eight
bits, most of the change is rounded away: `W + B A` is the same number as `W`. Kept separate, A and B are rounded
relative to their own size, and the change survives. The outputs have eight bits too: `B (A x)` added to an already
rounded `W x` would be lost in the same way. So both are one product, `[W | B] [x; A x]`, accumulated in float32 and
rounded once. A float32 engine takes merged weights and needs none of this.

B is scaled by alpha / rank. Both are zero until the first update, and are only ever changed in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from agent_r1.errors import EngineError
from agent_r1.models.padding import round_up

RANK_MULTIPLE = 8
"""Ranks are padded to a multiple of this with zeros: matrix products are slow over rows that are not 16 bytes apart."""


def add_unmerged_adapters(model: nn.Module, ranks: Mapping[str, int]) -> None:
    """Put an adapter of the given rank beside each named linear layer, in place."""
    for name, rank in ranks.items():
        path, _, leaf = name.rpartition(".")
        parent: Any = model.get_submodule(path)
        layer = getattr(parent, leaf)
        if type(layer) is not nn.Linear:
            raise EngineError(f"'{name}' is a {type(layer).__name__}; adapters go beside plain linear layers")
        setattr(parent, leaf, AdaptedLinear(layer, rank))


class LaidAdapters:
    """The matrices of layers that read the same input, laid out for one product: `[W | B]`, and A.

    The weights of the layers are under each other, and so are their A; each B stands in the rows of its own weight and
    in the columns of its own A, zeros elsewhere. Not a module: the layers' parameters are views of it.
    """

    def __init__(self, weights: Sequence[Tensor], ranks: Sequence[int]) -> None:
        self.in_features = weights[0].shape[1]
        width = round_up(sum(ranks), RANK_MULTIPLE)
        num_rows = sum(len(weight) for weight in weights)
        joint = weights[0].new_zeros(num_rows, self.in_features + width)
        down = weights[0].new_zeros(width, self.in_features)
        self.weights: list[nn.Parameter] = []
        self.downs: list[nn.Parameter] = []
        self.ups: list[nn.Parameter] = []
        row, column = 0, 0
        for weight, rank in zip(weights, ranks, strict=True):
            rows, columns = slice(row, row + len(weight)), slice(column, column + rank)
            joint[rows, : self.in_features] = weight
            self.weights.append(_fixed_parameter(joint[rows, : self.in_features]))
            self.downs.append(_fixed_parameter(down[columns]))
            self.ups.append(_fixed_parameter(joint[rows, self.in_features + column : self.in_features + column + rank]))
            row, column = rows.stop, columns.stop
        self.joint, self.down = _fixed_parameter(joint), _fixed_parameter(down)

    def product(self, hidden: Tensor, bias: Tensor | None) -> Tensor:
        """The outputs of all layers, side by side."""
        inputs = torch.cat([hidden, nn.functional.linear(hidden, self.down)], dim=-1)
        return nn.functional.linear(inputs, self.joint, bias)


class AdaptedLinear(nn.Module):
    """Replaces a linear layer: its parameters and an adapter."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.out_features, self.in_features = layer.out_features, layer.in_features
        self._laid = LaidAdapters([layer.weight.detach()], [rank])
        [self.weight], [self.lora_A], [self.lora_B] = self._laid.weights, self._laid.downs, self._laid.ups
        self.bias = cast("nn.Parameter | None", layer.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """The projection of hidden states, adapter included."""
        return self._laid.product(hidden, self.bias)


def _fixed_parameter(tensor: Tensor) -> nn.Parameter:
    """A parameter (of fixed shape to a compiler) that an engine changes in place."""
    return nn.Parameter(tensor, requires_grad=False)
