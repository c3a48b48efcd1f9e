"""The learner: turns a batch of experience into updates, for any algorithm.

It knows models, micro-batches and optimizers. What is learned comes in as four functions (estimator, loss, aggregation,
KL estimator), bound from the configuration.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from agent_r1.algorithms import (
    Credit,
    LossInputs,
    StepTable,
    value_loss,
)
from agent_r1.config import OptimizerConfig
from agent_r1.seeds import mix_seed
from agent_r1.training.algorithm import Algorithm
from agent_r1.training.batch import Experience
from agent_r1.training.models import Critic
from agent_r1.training.optimize import SkipCounter, guarded_step, make_optimizer
from agent_r1.training.rows import MicroBatch, pack
from agent_r1.training.scoring import score, score_all, value, value_all, value_of_states


@dataclass(frozen=True, kw_only=True, slots=True)
class _Batch:
    """Experience with everything the updates need, at token granularity."""

    experience: Experience
    credit: Credit
    old_logprobs_N: Tensor
    reference_logprobs_N: Tensor | None
    old_values_N: Tensor | None


class Learner:
    """Policy, critic and reference with their optimizers."""

    def __init__(
        self,
        *,
        policy: nn.Module,
        reference: nn.Module | None,
        critic: Critic | None,
        algorithm: Algorithm,
        optimizer: OptimizerConfig,
        temperature: float,
        micro_batch_tokens: int,
        max_skipped_updates: int,
        total_steps: int,
        seed: int,
        device: torch.device,
    ) -> None:
        self.policy = policy
        self.reference = reference
        self.critic = critic
        self.algorithm = algorithm
        self.device = device
        self.policy_skips = SkipCounter(what="policy", limit=max_skipped_updates)
        self.critic_skips = SkipCounter(what="critic", limit=max_skipped_updates)
        self._optimizer_config = optimizer
        self._temperature = temperature
        self._max_tokens = micro_batch_tokens
        self._total_steps = total_steps
        self._seed = seed
        self.policy_optimizer = make_optimizer(policy, optimizer, optimizer.learning_rate)
        critic_rate = algorithm.settings.critic.learning_rate
        self.critic_optimizer = make_optimizer(critic, optimizer, critic_rate) if critic is not None else None

    def learn(self, experience: Experience, *, step: int) -> dict[str, float]:
        """All updates of one training step; what happened, as metrics."""
        if not experience.table.num_tokens:
            return {"loss/updates": 0.0}
        batch, metrics = self._prepare(experience)
        for number, chosen in enumerate(self._minibatches(experience, step)):
            for name, amount in self._update(batch, chosen, step).items():
                # Later updates of a step refine the first; their mean is what the step did.
                metrics[name] = metrics.get(name, 0.0) + (amount - metrics.get(name, 0.0)) / (number + 1)
        metrics["loss/skipped_updates"] = float(self.policy_skips.total + self.critic_skips.total)
        return metrics

    # --- before the updates ----------------------------------------------------------------------------------------

    def _prepare(self, experience: Experience) -> tuple[_Batch, dict[str, float]]:
        """Score the batch under the old policy, the reference and the critic, then assign credit."""
        settings = self.algorithm.settings
        metrics: dict[str, float] = {}
        old_N = experience.rollout_logprobs_N
        if settings.epochs * settings.minibatches > 1 or settings.kl.coefficient:
            old_N = self._score_all(self.policy, experience)
            metrics["offpolicy/logprob_difference"] = float((old_N - experience.rollout_logprobs_N).abs().mean())
        reference_N = self._score_all(self.reference, experience) if self.reference is not None else None
        table, values_N = experience.table, None
        if reference_N is not None and settings.kl.place == "reward":
            table = _with_kl_in_reward(table, settings.kl.coefficient * self.algorithm.kl(old_N, reference_N).double())
        if self.critic is not None:
            values_N = value_all(self.critic, experience.samples, max_tokens=self._max_tokens, device=self.device)
            table = replace(table, values_N=values_N.double(), bootstrap_R=self._bootstrap(experience))
        credit = self.algorithm.estimate(table)
        batch = _Batch(
            experience=experience,
            credit=credit,
            old_logprobs_N=old_N,
            reference_logprobs_N=reference_N,
            old_values_N=values_N,
        )
        return batch, metrics | _credit_metrics(credit, table)

    def _score_all(self, model: nn.Module, experience: Experience) -> Tensor:
        return score_all(
            model, experience.samples, temperature=self._temperature, max_tokens=self._max_tokens, device=self.device
        )

    def _bootstrap(self, experience: Experience) -> Tensor:
        """The critic's value after the last step of each truncated trajectory; 0 elsewhere."""
        assert self.critic is not None
        values_R = torch.zeros(len(experience.trajectories), dtype=torch.float64)
        cut = [index for index, t in enumerate(experience.trajectories) if t.next_prompt_ids]
        states = [experience.trajectories[index].next_prompt_ids or () for index in cut]
        if states:
            values = value_of_states(self.critic, states, max_tokens=self._max_tokens, device=self.device)
            values_R[torch.tensor(cut)] = values.double()
        return values_R

    def _minibatches(self, experience: Experience, step: int) -> list[list[int]]:
        """The samples of each update. Whole groups go into a minibatch, so the number of updates is fixed, however
        many steps the trajectories have."""
        settings = self.algorithm.settings
        group_R = experience.table.group_R.tolist()
        sample_groups = [group_R[owner] for owner in experience.table.trajectory_S.tolist()]
        updates: list[list[int]] = []
        for epoch in range(settings.epochs):
            groups = sorted(set(group_R))
            random.Random(mix_seed(self._seed, step, epoch)).shuffle(groups)
            for part in range(settings.minibatches):
                members = set(groups[part :: settings.minibatches])
                updates.append([index for index, group in enumerate(sample_groups) if group in members])
        return [update for update in updates if update]

    # --- one update ------------------------------------------------------------------------------------------------

    def _update(self, batch: _Batch, chosen: Sequence[int], step: int) -> dict[str, float]:
        """One optimizer step of the policy and one of the critic on the chosen samples."""
        metrics = self._update_policy(batch, self._pack(batch, chosen, batch.credit.credited_N), step)
        if self.critic is not None and batch.credit.valued_N is not None:
            metrics |= self._update_critic(batch, self._pack(batch, chosen, batch.credit.valued_N), step)
        return metrics

    def _pack(self, batch: _Batch, chosen: Sequence[int], wanted_N: Tensor) -> list[MicroBatch]:
        """Micro-batches of the chosen samples that have any wanted token; the others would be computed for nothing."""
        table = batch.experience.table
        wanted_S = torch.zeros(len(table.lengths_S)).index_add(0, table.step_of_token_N, wanted_N.float()) > 0
        useful = [index for index in chosen if wanted_S[index]]
        return pack(batch.experience.samples, useful, max_tokens=self._max_tokens)

    def _update_policy(self, batch: _Batch, micro_batches: Sequence[MicroBatch], step: int) -> dict[str, float]:
        if not micro_batches:
            return {"loss/updates": 0.0}
        weights_N = self._weights(batch, micro_batches)
        sums: defaultdict[str, float] = defaultdict(float)
        for micro in micro_batches:
            weight_N = weights_N[micro.tokens_N].to(self.device)
            for name, amount in self._policy_backward(batch, micro, weight_N, float(weights_N.sum())).items():
                sums[name] += amount
        norm = guarded_step(
            self.policy_optimizer,
            self.policy.parameters(),
            loss=sums["loss/policy"],
            gradient_clip=self._optimizer_config.gradient_clip,
            learning_rate=self._rate(self._optimizer_config.learning_rate, step),
            skips=self.policy_skips,
        )
        return {**sums, "policy/gradient_norm": norm, "loss/updates": 1.0}

    def _weights(self, batch: _Batch, micro_batches: Sequence[MicroBatch]) -> Tensor:
        """The weight of each token in this update's loss; 0 for tokens outside it. Denominators are the update's."""
        table = batch.experience.table
        tokens_N = torch.cat([micro.tokens_N for micro in micro_batches]).sort().values
        weights_N = torch.zeros(table.num_tokens)
        weights_N[tokens_N] = self.algorithm.aggregate(
            batch.credit.credited_N[tokens_N], table.step_of_token_N[tokens_N], table.trajectory_of_token_N[tokens_N]
        ).float()
        return weights_N

    def _policy_backward(
        self, batch: _Batch, micro: MicroBatch, weight_N: Tensor, total_weight: float
    ) -> dict[str, float]:
        """Forward and backward of one micro-batch. Returns weighted sums, which add up over micro-batches."""
        settings = self.algorithm.settings
        tokens_N = micro.tokens_N
        entropy_matters = settings.entropy_coefficient != 0
        scores = score(
            self.policy, micro.to(self.device), temperature=self._temperature, with_entropy_gradient=entropy_matters
        )
        losses = self.algorithm.loss(
            LossInputs(
                policy_logprobs_N=scores.logprobs_N,
                old_logprobs_N=batch.old_logprobs_N[tokens_N].to(self.device),
                # What a token without credit was given must not matter, not even if it is NaN.
                advantages_N=batch.credit.advantages_N[tokens_N]
                .float()
                .to(self.device)
                .masked_fill(weight_N == 0, 0.0),
                step_N=torch.unique(batch.experience.table.step_of_token_N[tokens_N], return_inverse=True)[1],
            )
        )
        total_N = losses.loss_N
        extra: dict[str, Tensor] = {f"policy/{name}": tensor for name, tensor in losses.metrics_N.items()}
        if entropy_matters:
            total_N = total_N - settings.entropy_coefficient * scores.entropy_N
        if batch.reference_logprobs_N is not None:
            kl_N = self.algorithm.kl(scores.logprobs_N, batch.reference_logprobs_N[tokens_N].to(self.device))
            extra["policy/reference_kl"] = kl_N.detach()
            if settings.kl.place == "loss":
                total_N = total_N + settings.kl.coefficient * kl_N
        # A weight of 0 times an infinite loss would be NaN.
        loss = (weight_N * total_N.masked_fill(weight_N == 0, 0.0)).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        rollout_N = batch.experience.rollout_logprobs_N[tokens_N].to(self.device)
        extra["offpolicy/engine_difference"] = (scores.logprobs_N.detach() - rollout_N).abs()
        extra["policy/entropy"] = scores.entropy_N.detach()
        shared_N = weight_N / total_weight
        sums = {name: float((shared_N * tensor).sum()) for name, tensor in extra.items()}
        return {"loss/policy": float(loss.detach()), **sums}

    def _update_critic(self, batch: _Batch, micro_batches: Sequence[MicroBatch], step: int) -> dict[str, float]:
        assert self.critic is not None
        assert self.critic_optimizer is not None
        credit, settings = batch.credit, self.algorithm.settings.critic
        if credit.returns_N is None or credit.valued_N is None or batch.old_values_N is None:
            return {}
        num_valued = sum(int(credit.valued_N[micro.tokens_N].sum()) for micro in micro_batches)
        total = 0.0
        for micro in micro_batches:
            valued_N = credit.valued_N[micro.tokens_N].to(self.device)
            loss_N = value_loss(
                value(self.critic, micro.to(self.device)),
                batch.old_values_N[micro.tokens_N].to(self.device),
                credit.returns_N[micro.tokens_N].float().to(self.device),
                clip_range=settings.value_clip,
            )
            loss = loss_N.masked_fill(~valued_N, 0.0).sum() / max(1, num_valued)
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        norm = guarded_step(
            self.critic_optimizer,
            self.critic.parameters(),
            loss=total,
            gradient_clip=self._optimizer_config.gradient_clip,
            learning_rate=self._rate(settings.learning_rate, step),
            skips=self.critic_skips,
        )
        return {"loss/critic": total, "critic/gradient_norm": norm}

    def _rate(self, peak: float, step: int) -> float:
        """The learning rate of a training step: a linear rise over the warm-up, a linear fall to the final fraction."""
        settings = self._optimizer_config
        rise = min(1.0, (step + 1) / (settings.warmup_steps + 1))
        fall = 1.0 - (1.0 - settings.final_fraction) * min(1.0, step / max(1, self._total_steps - 1))
        return peak * rise * fall

    # --- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs to go on as if it had never stopped."""
        state: dict[str, Any] = {
            "policy": self.policy.state_dict(),
            "policy_optimizer": self.policy_optimizer.state_dict(),
            "skips": [[skips.total, skips.in_a_row] for skips in (self.policy_skips, self.critic_skips)],
        }
        if self.critic is not None and self.critic_optimizer is not None:
            state |= {"critic": self.critic.state_dict(), "critic_optimizer": self.critic_optimizer.state_dict()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self.policy.load_state_dict(state["policy"])
        self.policy_optimizer.load_state_dict(state["policy_optimizer"])
        for skips, saved in zip((self.policy_skips, self.critic_skips), state["skips"], strict=True):
            skips.total, skips.in_a_row = saved
        if self.critic is not None and self.critic_optimizer is not None:
            self.critic.load_state_dict(state["critic"])
            self.critic_optimizer.load_state_dict(state["critic_optimizer"])


def _with_kl_in_reward(table: StepTable, penalty_N: Tensor) -> StepTable:
    """The table with a per-token penalty taken off the reward of its step."""
    penalty_S = torch.zeros_like(table.rewards_S).index_add(0, table.step_of_token_N, penalty_N)
    return replace(table, rewards_S=table.rewards_S - penalty_S, token_rewards_N=-penalty_N)


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
