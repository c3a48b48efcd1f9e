"""Optimizer steps: on float32 weights, clipped, scheduled, and skipped when anything is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from agent_r1.config import OptimizerConfig
from agent_r1.errors import DivergenceError
from agent_r1.learner.sharded.peers import ONE_PROCESS
from agent_r1.models import train_in_float32

_BETAS = (0.9, 0.95)
"""Decay of the mean gradient and of the mean squared gradient; the second decays faster than AdamW's default 0.999, as
is usual for language models: rewards change the gradients' scale within a run."""


def make_optimizer(model: nn.Module, config: OptimizerConfig, learning_rate: float) -> torch.optim.AdamW:
    """AdamW over all trained parameters of a model, which become float32; one kernel for all of them on a GPU."""
    train_in_float32(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(
        _groups(trained),
        lr=learning_rate,
        betas=_BETAS,
        weight_decay=config.weight_decay,
        fused=all(parameter.is_cuda for parameter in trained),
    )


def _groups(trained: list[nn.Parameter]) -> Any:
    """The parameters, those of the same type together: an optimizer step takes sharded and whole ones apart."""
    kinds = list(dict.fromkeys(type(parameter.data) for parameter in trained))
    if len(kinds) < 2:
        return trained
    return [{"params": [entry for entry in trained if type(entry.data) is kind]} for kind in kinds]


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
    clip: Callable[[Iterable[nn.Parameter], float], Tensor] = ONE_PROCESS.clip,
) -> Tensor:
    """Clip and step; a non-finite loss or gradient never reaches the weights. Returns the norm before clipping.

    On a GPU nothing here waits for the device: the optimizer's kernel checks for finite values, so it can be queued
    while the backward pass is still running.
    """
    norm = clip(parameters, gradient_clip).to(loss.device)  # on the CPU where sharded parameters are kept there
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


def scheduled_rate(peak: float, step: int, *, total_steps: int, settings: OptimizerConfig) -> float:
    """The learning rate of a training step: rises linearly over the warm-up, falls linearly to the final fraction."""
    rise = min(1.0, (step + 1) / (settings.warmup_steps + 1))
    fall = 1.0 - (1.0 - settings.final_fraction) * min(1.0, step / max(1, total_steps - 1))
    return peak * rise * fall


class MetricSums:
    """Adds metrics up on the device; only `read` makes the host wait for it.

    >>> sums = MetricSums(); sums.add({"loss": torch.tensor(1.0)}); sums.add({"loss": torch.tensor(2.0)}); sums.read()
    {'loss': 3.0}
    """

    def __init__(self) -> None:
        self._totals: dict[str, Tensor] = {}

    def add(self, terms: Mapping[str, Tensor]) -> None:
        """Add each term to the total of its name."""
        for name, amount in terms.items():
            self._totals[name] = self._totals[name] + amount if name in self._totals else amount

    def __getitem__(self, name: str) -> Tensor:
        return self._totals[name]

    def read(self) -> dict[str, float]:
        """The totals as numbers."""
        if not self._totals:
            return {}
        return dict(zip(self._totals, torch.stack(list(self._totals.values())).tolist(), strict=True))
