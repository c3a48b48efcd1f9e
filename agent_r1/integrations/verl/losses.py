"""Our policy losses with verl's signature. verl aggregates the losses of tokens, over ranks and micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from agent_r1.algorithms import LossInputs, TokenLosses
from agent_r1.integrations.verl.estimators import step_numbers

VerlPolicyLoss = Callable[..., tuple[Tensor, dict[str, Any]]]
"""verl's form: `(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights) ->
(loss, metrics)`."""


def verl_policy_loss(loss: Callable[[LossInputs], TokenLosses], aggregate: Callable[..., Tensor]) -> VerlPolicyLoss:
    """A loss of ours, with its arguments bound, as one of verl's. `aggregate` is verl's `agg_loss`.

    A step is a run of the response mask, so a ratio per step is one per model call, not one per row.
    """

    def compute(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        mask = response_mask.bool()
        inputs = LossInputs(
            policy_logprobs_N=log_prob[mask],
            old_logprobs_N=old_log_prob[mask],
            advantages_N=advantages[mask],
            step_N=step_numbers(mask)[mask],
        )
        losses = loss(inputs)
        rows = torch.zeros_like(log_prob).masked_scatter(mask, losses.loss_N.to(log_prob.dtype))
        if rollout_is_weights is not None:
            rows = rows * rollout_is_weights
        shared = {} if config is None else dict(config.global_batch_info)
        total = aggregate(loss_mat=rows, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **shared)
        metrics = {
            f"actor/{name}": float(values_N.detach().float().mean()) if len(values_N) else 0.0
            for name, values_N in losses.metrics_N.items()
        }
        return total, metrics

    return compute
