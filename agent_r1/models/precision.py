"""The type that weights are trained in."""

from __future__ import annotations

import torch
from torch import nn


def train_in_float32(model: nn.Module) -> None:
    """Make the weights that are trained float32, in place; what stands still keeps its type.

    A weight of 0.02 in bfloat16 has neighbours 0.0001 away. An update of 1e-6 is rounded to nothing, and so is the sum
    of a hundred of them, for each is rounded by itself. In float32 they add up. Passes are still made in bfloat16, by
    autocast, and the engine rounds its own copy.
    """
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))
