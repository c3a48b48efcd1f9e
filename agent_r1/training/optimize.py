"""One optimizer step that can be trusted: clipped, and skipped when anything is not finite."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from agent_r1.config import OptimizerConfig
from agent_r1.errors import DivergenceError


def make_optimizer(model: nn.Module, config: OptimizerConfig, learning_rate: float) -> torch.optim.AdamW:
    """AdamW over all parameters of a model; one kernel for all of them on a GPU."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(
        trained,
        lr=learning_rate,
        betas=(config.beta1, config.beta2),
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

    def note(self, *, finite: bool) -> None:
        """Count one update; raises `DivergenceError` at the limit."""
        if finite:
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
    loss: float,
    gradient_clip: float,
    learning_rate: float,
    skips: SkipCounter,
) -> float:
    """Clip and step; a non-finite loss or gradient never reaches the weights. Gives the norm before clipping."""
    norm = nn.utils.clip_grad_norm_(list(parameters), gradient_clip)
    finite = bool(torch.isfinite(norm)) and bool(torch.isfinite(torch.tensor(loss)))
    if finite:
        for entry in optimizer.param_groups:
            entry["lr"] = learning_rate
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    skips.note(finite=finite)
    return float(norm)
