"""The type in which weights are trained."""

from __future__ import annotations

import torch
from torch import nn


def train_in_float32(model: nn.Module) -> None:
    """Make trained weights float32, in place; frozen weights keep their type.

    A weight of 0.02 in bfloat16 has neighbours 0.0001 away. An update of 1e-6 is rounded to nothing, and so are a
    hundred of them, because each is rounded separately. In float32 they add up. Passes still run in bfloat16, by
    autocast, and the engine rounds its own copy.
    """
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))
