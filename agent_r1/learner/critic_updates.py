"""The critic's gradient: the value loss, the backward pass of a micro-batch, and the correction of a trained head."""

from __future__ import annotations

import torch
from torch import Tensor

from agent_r1.algorithms import value_loss
from agent_r1.learner.compute import Compute
from agent_r1.learner.credit import CreditedBatch, TokenArrays, observed_returns
from agent_r1.learner.critics import TrainedCritic, correct_head
from agent_r1.learner.packing.minibatches import Minibatch
from agent_r1.learner.packing.samples import MicroBatch, send
from agent_r1.learner.scoring import value_micro_batch
from agent_r1.models import ImagePass

CRITIC_UPDATES = 4
"""Optimizer steps of a critic per optimizer step of the policy, each on its part of the same samples: the passes cost
the same, a regression need not stay near where it began, and a critic starts out knowing nothing. A head on the
policy's trunk takes them while it warms up; from then on its gradient comes with the policy's, and so does its one
step."""

CORRECTION = 0.5
"""How much of what the closed form would change in a trained critic's head is changed after each batch."""


def num_valued(batch: CreditedBatch, minibatch: Minibatch) -> int:
    """Tokens of an update that the critic learns from."""
    valued_N = batch.credit.valued_N
    return 0 if valued_N is None else int(valued_N[minibatch.tokens_N].sum())


def critic_backward(
    critic: TrainedCritic,
    batch: CreditedBatch,
    micro: MicroBatch,
    compute: Compute,
    *,
    num_valued: int,
    value_clip: float | None,
    images: ImagePass | None = None,
) -> Tensor:
    """Forward and backward pass of one micro-batch. Returns its part of the loss."""
    values_N = value_micro_batch(critic, micro.to(compute.device), compute, images)
    arrays = batch.arrays.at(send(micro.tokens_N, compute.device))
    loss = value_objective(arrays, values_N, num_valued, value_clip)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def value_objective(arrays: TokenArrays, values_N: Tensor, num_valued: int, value_clip: float | None) -> Tensor:
    """The value loss of a micro-batch as its share of the update's mean."""
    assert arrays.valued_N is not None
    assert arrays.returns_N is not None
    assert arrays.old_values_N is not None
    loss_N = value_loss(values_N, arrays.old_values_N, arrays.returns_N, clip_range=value_clip)
    return loss_N.masked_fill(~arrays.valued_N, 0.0).sum() / max(1, num_valued)


def correct_critic(critic: TrainedCritic, batch: CreditedBatch, device: torch.device, *, is_solved: bool) -> bool:
    """After a batch, do for a trained critic's head what gradient steps are bad at: all of the way from zero after the
    first batch, part of the way after later ones (`is_solved`). Returns whether the head was changed."""
    valued_N, values_N = batch.credit.valued_N, batch.arrays.old_values_N
    if valued_N is None or values_N is None or batch.critic_hidden_N is None or not valued_N.any():
        return False
    table = batch.experience.table
    return correct_head(
        critic.head,
        batch.critic_hidden_N[send(valued_N, device)],
        observed_returns(batch.credit) - values_N.cpu()[valued_N],
        table.group_R[table.trajectory_of_token_N][valued_N],
        share=CORRECTION if is_solved else 1.0,
    )
