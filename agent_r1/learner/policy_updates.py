"""The policy's gradient: the loss of each token, its weight, and the backward pass of a micro-batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from agent_r1.algorithms import Algorithm, LossInputs, engine_divergence
from agent_r1.learner.credit import CreditedBatch, TokenArrays
from agent_r1.learner.critic_updates import value_objective
from agent_r1.learner.critics import SharedCritic
from agent_r1.learner.models import Models
from agent_r1.learner.packing.minibatches import Minibatch
from agent_r1.learner.packing.samples import MicroBatch, send
from agent_r1.learner.scoring import Scores, score_micro_batch
from agent_r1.models import ImagePass

SHARED_WEIGHT = 0.1
"""The weight of the value loss in the gradient of a trunk that policy and critic share."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyUpdate:
    """One update of the policy: the same for all its micro-batches."""

    models: Models
    """The policy, and a critic that may share its trunk."""
    algorithm: Algorithm
    """The functions that the configuration names: loss, aggregation, KL, correction."""
    batch: CreditedBatch
    """All samples with their credit."""
    kl_coefficient: float
    """The current weight of the divergence from the reference."""
    weights_N: Tensor
    """The weight of each token in the loss; 0 for tokens outside the update."""
    total_weight: float
    """The sum of the weights."""
    num_valued: int
    """Tokens that a shared critic learns from."""
    images: ImagePass
    """The images of all micro-batches."""

    def backward(self, micro: MicroBatch) -> dict[str, Tensor]:
        """Forward and backward pass of one micro-batch. Returns weighted sums, which add up over micro-batches."""
        settings, device = self.algorithm.settings, self.models.compute.device
        weight_N = send(self.weights_N[micro.tokens_N], device)
        value_of = None
        if isinstance(self.models.critic, SharedCritic):
            value_of = partial(self.models.critic.value_of, trunk_weight=SHARED_WEIGHT)
        scores = score_micro_batch(
            self.models.policy,
            micro.to(device),
            self.models.compute,
            with_entropy_gradient=settings.entropy_coefficient != 0,
            value_of=value_of,
            images=self.images,
        )
        if self.batch.passes is not None:
            self.batch.passes.note(micro.tokens_N, scores.logprobs_N, scores.entropy_N)
        if not len(micro.tokens_N):
            return _empty_backward(scores)
        arrays = self.batch.arrays.at(send(micro.tokens_N, device))
        total_N, observed = self._token_losses(arrays, scores, weight_N)
        # A weight of 0 times an infinite loss would be NaN.
        loss = (weight_N * total_N.masked_fill(weight_N == 0, 0.0)).sum()
        objective, sums = loss, {"loss/policy": loss.detach()}
        if scores.values_N is not None:
            critic_loss = value_objective(arrays, scores.values_N, self.num_valued, settings.critic.value_clip)
            objective = objective + critic_loss
            sums["loss/critic"] = critic_loss.detach()
        objective.backward()  # type: ignore[no-untyped-call]
        observed["policy/entropy"] = scores.entropy_N.detach()
        share_N = weight_N / self.total_weight
        return sums | {name: (share_N * tensor).sum() for name, tensor in observed.items()}

    def _token_losses(self, arrays: TokenArrays, scores: Scores, weight_N: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of each token, and metrics per token."""
        algorithm, settings = self.algorithm, self.algorithm.settings
        current_N, rollout_N = scores.logprobs_N.detach(), arrays.rollout_logprobs_N
        old_N = current_N if arrays.old_logprobs_N is None else arrays.old_logprobs_N
        # The advantage of a token without credit must not matter, not even if it is NaN.
        advantages_N = arrays.advantages_N.masked_fill(weight_N == 0, 0.0)
        losses = algorithm.loss(
            LossInputs(
                policy_logprobs_N=scores.logprobs_N,
                old_logprobs_N=old_N,
                advantages_N=advantages_N,
                step_N=arrays.step_N,
            )
        )
        correction_N = algorithm.correct(old_N, rollout_N, arrays.step_N)
        total_N = losses.loss_N * correction_N
        observed = {f"policy/{name}": tensor for name, tensor in losses.metrics_N.items()}
        if settings.entropy_coefficient:
            total_N = total_N - settings.entropy_coefficient * scores.entropy_N
        if arrays.reference_logprobs_N is not None:
            kl_N = algorithm.kl(scores.logprobs_N, arrays.reference_logprobs_N)
            observed["policy/reference_kl"] = kl_N.detach()
            if settings.kl.place == "loss":
                total_N = total_N + self.kl_coefficient * kl_N
        if algorithm.corrects_off_policy:
            observed["offpolicy/weight"] = correction_N
        if "offpolicy/kl" not in self.batch.metrics:
            observed["offpolicy/logprob_difference"] = (current_N - rollout_N).abs()
            observed["offpolicy/kl"] = engine_divergence(current_N, rollout_N)
        return total_N, observed


def _empty_backward(scores: Scores) -> dict[str, Tensor]:
    """The backward pass of a micro-batch without action tokens: a gradient of zero for every weight, for a process that
    computes it because others compute more."""
    sums = {"loss/policy": scores.logprobs_N.sum()}
    if scores.values_N is not None:
        sums["loss/critic"] = scores.values_N.sum()
    sum(sums.values()).backward()  # type: ignore[union-attr]
    return {name: loss.detach() for name, loss in sums.items()}


def token_weights(batch: CreditedBatch, minibatch: Minibatch, algorithm: Algorithm) -> Tensor:
    """The weight of each token in an update's loss; 0 for tokens outside it. Denominators are those of the update."""
    table, tokens_N = batch.experience.table, minibatch.tokens_N
    weights_N = torch.zeros(table.num_tokens)
    weights_N[tokens_N] = algorithm.aggregate(
        batch.credit.credited_N[tokens_N], table.step_of_token_N[tokens_N], table.trajectory_of_token_N[tokens_N]
    ).float()
    return weights_N
