"""The types and the device that torch computes with."""

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


def changed_torch_defaults() -> str | None:
    """What is wrong with torch's defaults of this process; None while they are those that torch starts with.

    Code of a recipe in the run's process can change them for everything else in it: sums and log-probs would be of
    another type, or on another device, without a word.
    """
    device = torch.get_default_device()
    changed = [
        *([f"set_default_dtype({dtype})"] if (dtype := torch.get_default_dtype()) != torch.float32 else []),
        *([f"set_default_device('{device}')"] if device.type != "cpu" else []),
    ]
    if not changed:
        return None
    return (
        f"code in this process called torch.{' and torch.'.join(changed)}, which changes every computation in it; give "
        "dtype= and device= to the tensors that need them instead, or run that code in a process of its own "
        "(reward.timeout, @tool(process=True))"
    )
