"""What must be known before the first update of a batch: old and reference log-probs, values, and the credit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from agent_r1.algorithms import Credit, StepTable, engine_divergence
from agent_r1.training.algorithm import Algorithm
from agent_r1.training.batch import Experience
from agent_r1.training.compute import Compute
from agent_r1.training.lora import adapters_off
from agent_r1.training.rows import send
from agent_r1.training.scoring import AnyCritic, score_all, value_all, value_of_states


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenArrays:
    """What the losses need of each token of a batch, where the models are: sent once, picked from for each micro-batch.

    None where the algorithm has no use for it.
    """

    step_N: Tensor
    """The step it belongs to."""
    rollout_logprobs_N: Tensor
    """Under the engine."""
    advantages_N: Tensor
    """Its credit."""
    old_logprobs_N: Tensor | None
    """Under the policy the updates start from; None: those of the one update's own pass."""
    reference_logprobs_N: Tensor | None
    """Under the reference; None without one."""
    returns_N: Tensor | None
    """What the critic should say."""
    valued_N: Tensor | None
    """Whether the critic learns from it."""
    old_values_N: Tensor | None
    """What the critic said before the updates."""

    def at(self, tokens_N: Tensor) -> TokenArrays:
        """Those of some tokens."""
        return self._each(lambda tensor: tensor[tokens_N])

    def to(self, device: torch.device) -> TokenArrays:
        """The same on a device, numbers in float32."""
        return self._each(lambda tensor: send(tensor.float() if tensor.is_floating_point() else tensor, device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> TokenArrays:
        given: dict[str, Any] = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        changed: dict[str, Any] = {name: None if old is None else change(old) for name, old in given.items()}
        return TokenArrays(**changed)


@dataclass(frozen=True, kw_only=True, slots=True)
class CreditedBatch:
    """Experience with everything the updates need, at token granularity."""

    experience: Experience
    """The rollouts."""
    credit: Credit
    """Who deserves what."""
    arrays: TokenArrays
    """What the losses read, where the models are."""
    metrics: Mapping[str, float]
    """What was found."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Models:
    """The models of a run."""

    policy: nn.Module
    """Being trained."""
    reference: nn.Module | None
    """The policy the run started from; None when nothing asks for it. Its adapters, if any, are switched off when it
    is asked, so a policy with adapters is its own reference."""
    critic: AnyCritic | None
    """Values; None without one."""
    compute: Compute
    """How they are run."""


def assign_credit(
    experience: Experience, models: Models, algorithm: Algorithm, *, kl_coefficient: float
) -> CreditedBatch:
    """Score the batch under the old policy, the reference and the critic, then let the estimator judge it."""
    metrics: dict[str, float] = dict(experience.metrics)
    old_N = _old_logprobs(experience, models, algorithm, metrics)
    reference_N = _reference_logprobs(experience, models)
    table, values_N = experience.table, None
    if reference_N is not None and algorithm.kl_in_reward:
        assert old_N is not None
        kl_N = algorithm.kl(old_N, reference_N).double()
        metrics["reward/kl_penalty"] = float(kl_coefficient * kl_N.sum() / max(1, table.num_trajectories))
        table = with_token_penalty(table, kl_coefficient * kl_N)
    if models.critic is not None:
        values_N = value_all(models.critic, experience.critic_samples, models.compute)
        bootstrap_R = _values_after_the_cut(experience, models, models.critic)
        table = replace(table, values_N=values_N.double(), bootstrap_R=bootstrap_R)
    credit = algorithm.estimate(table)
    return CreditedBatch(
        experience=experience,
        credit=credit,
        arrays=TokenArrays(
            step_N=experience.table.step_of_token_N,
            rollout_logprobs_N=experience.rollout_logprobs_N,
            advantages_N=credit.advantages_N,
            old_logprobs_N=old_N,
            reference_logprobs_N=reference_N,
            returns_N=credit.returns_N,
            valued_N=credit.valued_N,
            old_values_N=values_N,
        ).to(models.compute.device),
        metrics=metrics | _credit_metrics(credit, table),
    )


def _reference_logprobs(experience: Experience, models: Models) -> Tensor | None:
    if models.reference is None:
        return None
    with adapters_off(models.reference):
        return score_all(models.reference, experience.samples, models.compute)


def _old_logprobs(
    experience: Experience, models: Models, algorithm: Algorithm, metrics: dict[str, float]
) -> Tensor | None:
    if algorithm.bypasses_old_policy:
        return experience.rollout_logprobs_N
    if algorithm.num_updates == 1 and not algorithm.kl_in_reward:
        return None
    old_N = score_all(models.policy, experience.samples, models.compute)
    metrics |= engine_metrics(old_N, experience.rollout_logprobs_N)
    return old_N


def engine_metrics(trainer_logprobs_N: Tensor, rollout_logprobs_N: Tensor) -> dict[str, float]:
    """How far the engine's probabilities are from the trainer's, for the same weights."""
    if not len(trainer_logprobs_N):
        return {}
    return {
        "offpolicy/logprob_difference": float((trainer_logprobs_N - rollout_logprobs_N).abs().mean()),
        "offpolicy/kl": float(engine_divergence(trainer_logprobs_N, rollout_logprobs_N).mean()),
    }


def with_token_penalty(table: StepTable, penalty_N: Tensor) -> StepTable:
    """The table with a penalty per token taken off the reward of its step."""
    penalty_S = torch.zeros_like(table.rewards_S).index_add(0, table.step_of_token_N, penalty_N)
    return replace(table, rewards_S=table.rewards_S - penalty_S, token_rewards_N=-penalty_N)


def _values_after_the_cut(experience: Experience, models: Models, critic: AnyCritic) -> Tensor:
    """The critic's value of the state each truncated trajectory was cut in; 0 elsewhere."""
    values_R = torch.zeros(len(experience.trajectories), dtype=torch.float64)
    cut = sorted(experience.cut_states)
    if cut:
        states = [experience.cut_states[index] for index in cut]
        values = value_of_states(critic, states, models.compute)
        values_R[torch.tensor(cut)] = values.double()
    return values_R


def _credit_metrics(credit: Credit, table: StepTable) -> dict[str, float]:
    """How much of the batch can be learned from."""
    credited_R = torch.zeros(table.num_trajectories).index_add(
        0, table.trajectory_of_token_N, credit.credited_N.float()
    )
    metrics = {"policy/credited_trajectories": float((credited_R > 0).float().mean())}
    if credit.returns_N is not None and credit.valued_N is not None and table.values_N is not None:
        targets, predicted = credit.returns_N[credit.valued_N], table.values_N[credit.valued_N]
        metrics["critic/value"] = float(predicted.mean())
        spread = float(targets.var(correction=0))
        if spread > 0:
            metrics["critic/explained_variance"] = 1.0 - float((targets - predicted).var(correction=0)) / spread
    return metrics
