"""One optimizer step that can be trusted: on float32 weights, clipped, and skipped when anything is not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from agent_r1.config import OptimizerConfig
from agent_r1.errors import DivergenceError
from agent_r1.models import train_in_float32

_BETAS = (0.9, 0.95)
"""Decay of the mean gradient and of the mean squared gradient; the second forgets faster than AdamW's own 0.999, as is
usual for language models: rewards change what gradients look like within a run."""


def make_optimizer(model: nn.Module, config: OptimizerConfig, learning_rate: float) -> torch.optim.AdamW:
    """AdamW over all trained parameters of a model, which become float32; one kernel for all of them on a GPU."""
    train_in_float32(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(
        trained,
        lr=learning_rate,
        betas=_BETAS,
        weight_decay=config.weight_decay,
        fused=all(parameter.is_cuda for parameter in trained),
    )


@dataclass
class SkipCounter:
    """Counts updates that were skipped because they were not finite."""

    what: str
    """Whose updates: `policy` or `critic`."""
    limit: int
    """Stop the run after this many in a row."""
    total: int = 0
    """In the whole run."""
    in_a_row: int = 0
    """Since the last good update."""

    def note(self, *, loss: float, norm: float) -> None:
        """Count one update by its loss and the norm of its gradient; raises `DivergenceError` at the limit."""
        if math.isfinite(loss) and math.isfinite(norm):
            self.in_a_row = 0
            return
        self.total += 1
        self.in_a_row += 1
        if self.in_a_row >= self.limit:
            raise DivergenceError(
                f"{self.in_a_row} updates of the {self.what} in a row were not finite (NaN or inf in loss or "
                "gradient). The weights are those from before the first of them. Lower optimizer.learning_rate, "
                "check the rewards, or set model.dtype=float32"
            )


def guarded_step(
    optimizer: torch.optim.Optimizer,
    parameters: Iterable[nn.Parameter],
    *,
    loss: Tensor,
    gradient_clip: float,
    learning_rate: float,
) -> Tensor:
    """Clip and step; a non-finite loss or gradient never reaches the weights. Gives the norm before clipping.

    On a GPU nothing here waits: the optimizer's own kernel looks whether all is finite, so it can be started while the
    backward pass is still computed.
    """
    norm = nn.utils.clip_grad_norm_(list(parameters), gradient_clip)
    finite = torch.isfinite(norm) & torch.isfinite(loss)
    for entry in optimizer.param_groups:
        entry["lr"] = learning_rate
    if optimizer.defaults.get("fused"):
        optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
        optimizer.step()
        optimizer.found_inf = None  # type: ignore[attr-defined]
    elif finite:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm
