"""The learner: turns a batch of experience into updates, for any algorithm.

It knows models, micro-batches and optimizers. What is learned comes in as functions (estimator, loss, aggregation,
off-policy correction, KL estimator), bound from the configuration.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agent_r1.algorithms import Algorithm, LossInputs, adapted_coefficient, engine_divergence, value_loss
from agent_r1.config import Config, OptimizerConfig
from agent_r1.learner.compute import UpdateThread
from agent_r1.learner.credit import CreditedBatch, TokenArrays, assign_credit, observed_returns
from agent_r1.learner.critics import ClosedFormCritic, SharedCritic, correct_head
from agent_r1.learner.experience import Experience
from agent_r1.learner.models import Models, make_models, tune_layers
from agent_r1.learner.optimizer import SkipCounter, guarded_step, make_optimizer
from agent_r1.learner.packing.samples import MicroBatch, Sample, send
from agent_r1.learner.scoring import Scores, score, value
from agent_r1.learner.weight_growth import WeightGrowth
from agent_r1.models import Rounding, export_policy, freeze_gc, merged_weights, restore_state, saved_state
from agent_r1.seeds import mix_seed
from agent_r1.types import SamplingParams

CRITIC_UPDATES = 4
"""Optimizer steps of a critic for each one of the policy, each on its part of the same samples: the passes cost the
same, a regression need not stay near where it began, and a critic starts out knowing nothing. A head on the policy's
trunk takes them while it warms up; from then on its gradient comes with the policy's, and so does its one step."""

SHARED_WEIGHT = 0.1
"""The weight of the value loss in the gradient of a trunk that policy and critic share."""

CORRECTION = 0.5
"""How much of what the closed form would change in a trained critic's head is changed after each batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Share:
    """What one update computes."""

    samples: Sequence[Sample]
    """All of the batch."""
    useful: list[int]
    """Those in the update that have any token to learn from; the others would be computed for nothing."""
    tokens_N: Tensor
    """The places of their action tokens in the batch's flat arrays, in order."""


def _share(batch: CreditedBatch, samples: Sequence[Sample], chosen: Sequence[int], wanted_N: Tensor) -> _Share:
    """The part of the chosen samples in which any token is wanted."""
    table = batch.experience.table
    wanted_S = torch.zeros(len(table.lengths_S)).index_add(0, table.step_of_token_N, wanted_N.float()) > 0
    in_update_S = torch.zeros_like(wanted_S)
    in_update_S[list(chosen)] = True
    in_update_S &= wanted_S
    return _Share(
        samples=samples,
        useful=in_update_S.nonzero().squeeze(1).tolist(),
        tokens_N=in_update_S[table.step_of_token_N].nonzero().squeeze(1),
    )


def _by_group(
    experience: Experience, chosen: Sequence[int], parts: int, rng: random.Random | None = None
) -> list[list[int]]:
    """The chosen samples in so many parts, groups whole and in order, or shuffled; parts that got nothing are left out.

    Samples of groups 0 0 1 2 in two parts: groups 0 and 2 are one, group 1 is the other.
    """
    table = experience.table
    group_S = table.group_R[table.trajectory_S].tolist()
    groups = sorted({group_S[index] for index in chosen})
    if rng is not None:
        rng.shuffle(groups)
    part_of = {group: place % parts for place, group in enumerate(groups)}
    made: list[list[int]] = [[] for _ in range(parts)]
    for index in chosen:
        made[part_of[group_S[index]]].append(index)
    return [part for part in made if part]


class _Sums:
    """Adds named numbers up where they are; reading them is the one moment the host waits for the device.

    >>> sums = _Sums(); sums.add({"loss": torch.tensor(1.0)}); sums.add({"loss": torch.tensor(2.0)}); sums.read()
    {'loss': 3.0}
    """

    def __init__(self) -> None:
        self._totals: dict[str, Tensor] = {}

    def add(self, terms: Mapping[str, Tensor]) -> None:
        for name, amount in terms.items():
            self._totals[name] = self._totals[name] + amount if name in self._totals else amount

    def __getitem__(self, name: str) -> Tensor:
        return self._totals[name]

    def read(self) -> dict[str, float]:
        if not self._totals:
            return {}
        return dict(zip(self._totals, torch.stack(list(self._totals.values())).tolist(), strict=True))


class TorchLearner:
    """The learner of one process: policy, critic and reference with their optimizers."""

    def __init__(
        self,
        *,
        models: Models,
        algorithm: Algorithm,
        optimizer: OptimizerConfig,
        max_skipped_updates: int,
        total_steps: int,
        seed: int,
    ) -> None:
        self.models = models
        self.policy = models.policy
        self.critic = models.critic
        self.algorithm = algorithm
        self.device = models.compute.device
        self.kl_coefficient = algorithm.settings.kl.coefficient
        self.policy_skips = SkipCounter(what="policy", limit=max_skipped_updates)
        self.critic_skips = SkipCounter(what="critic", limit=max_skipped_updates)
        self._optimizer_config = optimizer
        self._total_steps = total_steps
        self._seed = seed
        self._is_warm = self.device.type != "cuda"
        self.policy_optimizer = make_optimizer(self.policy, optimizer, optimizer.learning_rate)
        critic_rate = algorithm.settings.critic.learning_rate
        self.critic_optimizer = (
            None
            if self.critic is None or isinstance(self.critic, ClosedFormCritic)
            else make_optimizer(self.critic, optimizer, critic_rate)
        )
        self._head_is_solved = False
        self._thread = UpdateThread(self.device)
        self._growth = WeightGrowth(self.policy)

    async def learn(self, experience: Experience, *, step: int) -> dict[str, float]:
        """Make all updates of one training step in the learner's own thread; see `Learner.learn`."""
        return await self._thread.run(lambda: self.learn_sync(experience, step=step))

    def learn_sync(self, experience: Experience, *, step: int) -> dict[str, float]:
        """The same in the calling thread."""
        if not experience.table.num_tokens:
            return {"loss/updates": 0.0}
        batch = assign_credit(experience, self.models, self.algorithm, kl_coefficient=self.kl_coefficient)
        metrics, times = dict(batch.metrics), Counter[str]()
        for chosen in self._minibatches(experience, step):
            for name, amount in self._update(batch, chosen, step).items():
                # What a step did is the mean over its updates. How far the engine is from the trainer can only be seen
                # before the first.
                if times[name] == 0 or not name.startswith("offpolicy/"):
                    times[name] += 1
                    metrics[name] = metrics.get(name, 0.0) + (amount - metrics.get(name, 0.0)) / times[name]
        self._correct_head(batch)
        self._adapt_kl(metrics, experience.table.num_trajectories)
        metrics["loss/skipped_updates"] = float(self.policy_skips.total + self.critic_skips.total)
        if not self._is_warm:  # the first update on a GPU compiled what it needs
            freeze_gc()
            self._is_warm = True
        return metrics

    def _minibatches(self, experience: Experience, step: int) -> list[list[int]]:
        """The samples of each update. Whole groups go into a minibatch, so the number of updates is fixed, however
        many steps the trajectories have."""
        settings, everything = self.algorithm.settings, range(len(experience.samples))
        updates: list[list[int]] = []
        for epoch in range(settings.epochs):
            rng = random.Random(mix_seed(self._seed, step, epoch))
            updates += _by_group(experience, everything, settings.minibatches, rng)
        return updates

    def _adapt_kl(self, metrics: dict[str, float], num_trajectories: int) -> None:
        settings = self.algorithm.settings.kl
        if self.models.reference is None:
            return
        metrics["policy/kl_coefficient"] = self.kl_coefficient
        if settings.target is not None and "policy/reference_kl" in metrics:
            self.kl_coefficient = adapted_coefficient(
                self.kl_coefficient,
                observed=metrics["policy/reference_kl"],
                target=settings.target,
                horizon=settings.horizon,
                num_trajectories=num_trajectories,
            )

    # --- one update ------------------------------------------------------------------------------------------------

    def _update(self, batch: CreditedBatch, chosen: Sequence[int], step: int) -> dict[str, float]:
        """One optimizer step of the policy, and some of the critic, on the chosen samples."""
        credit, warmup = batch.credit, self.algorithm.settings.critic.warmup_steps
        samples = batch.experience.samples
        if self.critic is None or credit.valued_N is None:
            return self._update_policy(batch, _share(batch, samples, chosen, credit.credited_N), step)
        if step < warmup:
            return {"loss/updates": 0.0, **self._update_critic(batch, chosen, step)}
        if isinstance(self.critic, ClosedFormCritic):
            return self._update_policy(batch, _share(batch, samples, chosen, credit.credited_N), step)
        if isinstance(self.critic, SharedCritic):
            either_N = credit.credited_N | credit.valued_N
            return self._update_policy(batch, _share(batch, samples, chosen, either_N), step)
        metrics = self._update_policy(batch, _share(batch, samples, chosen, credit.credited_N), step)
        return metrics | self._update_critic(batch, chosen, step)

    def _update_policy(self, batch: CreditedBatch, share: _Share, step: int) -> dict[str, float]:
        """One step of the policy; of a value head too when it shares the policy's trunk."""
        if not share.useful:
            return {"loss/updates": 0.0}
        weights_N = self._weights(batch, share)
        total_weight, num_valued = max(float(weights_N.sum()), 1e-12), self._num_valued(batch, share)
        running = _Sums()
        for micro in self.models.compute.pack(share.samples, share.useful):
            weight_N = send(weights_N[micro.tokens_N], self.device)
            running.add(self._policy_backward(batch, micro, weight_N, total_weight, num_valued))
        norm = guarded_step(
            self.policy_optimizer,
            self.policy.parameters(),
            loss=running["loss/policy"],
            gradient_clip=self._optimizer_config.gradient_clip,
            learning_rate=self._rate(self._optimizer_config.learning_rate, step),
        )
        running.add({"policy/gradient_norm": norm})
        if isinstance(self.critic, SharedCritic):
            self._step_critic(running, step)
        metrics = {**running.read(), "loss/updates": 1.0}
        self.policy_skips.note(loss=metrics["loss/policy"], norm=metrics["policy/gradient_norm"])
        if isinstance(self.critic, SharedCritic):
            self.critic_skips.note(loss=metrics["loss/critic"], norm=metrics["critic/gradient_norm"])
        return metrics

    def _weights(self, batch: CreditedBatch, share: _Share) -> Tensor:
        """The weight of each token in this update's loss; 0 for tokens outside it. Denominators are the update's."""
        table, tokens_N = batch.experience.table, share.tokens_N
        weights_N = torch.zeros(table.num_tokens)
        weights_N[tokens_N] = self.algorithm.aggregate(
            batch.credit.credited_N[tokens_N], table.step_of_token_N[tokens_N], table.trajectory_of_token_N[tokens_N]
        ).float()
        return weights_N

    def _policy_backward(
        self, batch: CreditedBatch, micro: MicroBatch, weight_N: Tensor, total_weight: float, num_valued: int
    ) -> dict[str, Tensor]:
        """Forward and backward of one micro-batch. Returns weighted sums, which add up over micro-batches."""
        settings = self.algorithm.settings
        value_of = None
        if isinstance(self.critic, SharedCritic):
            value_of = partial(self.critic.value_of, trunk_weight=SHARED_WEIGHT)
        scores = score(
            self.policy,
            micro.to(self.device),
            self.models.compute,
            with_entropy_gradient=settings.entropy_coefficient != 0,
            value_of=value_of,
        )
        here = batch.arrays.at(send(micro.tokens_N, self.device))
        total_N, seen = self._token_losses(here, scores, weight_N, with_divergence="offpolicy/kl" not in batch.metrics)
        # A weight of 0 times an infinite loss would be NaN.
        loss = (weight_N * total_N.masked_fill(weight_N == 0, 0.0)).sum()
        objective, sums = loss, {"loss/policy": loss.detach()}
        if scores.values_N is not None:
            critic_loss = self._value_objective(here, scores.values_N, num_valued)
            objective = objective + critic_loss
            sums["loss/critic"] = critic_loss.detach()
        objective.backward()  # type: ignore[no-untyped-call]
        seen["policy/entropy"] = scores.entropy_N.detach()
        shared_N = weight_N / total_weight
        return sums | {name: (shared_N * tensor).sum() for name, tensor in seen.items()}

    def _token_losses(
        self, here: TokenArrays, scores: Scores, weight_N: Tensor, *, with_divergence: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of each token, and what was seen on the way."""
        settings = self.algorithm.settings
        now_N, rollout_N = scores.logprobs_N.detach(), here.rollout_logprobs_N
        old_N = now_N if here.old_logprobs_N is None else here.old_logprobs_N
        # What a token without credit was given must not matter, not even if it is NaN.
        advantages_N = here.advantages_N.masked_fill(weight_N == 0, 0.0)
        losses = self.algorithm.loss(
            LossInputs(
                policy_logprobs_N=scores.logprobs_N, old_logprobs_N=old_N, advantages_N=advantages_N, step_N=here.step_N
            )
        )
        correction_N = self.algorithm.correct(old_N, rollout_N, here.step_N)
        total_N = losses.loss_N * correction_N
        seen = {f"policy/{name}": tensor for name, tensor in losses.metrics_N.items()}
        if settings.entropy_coefficient:
            total_N = total_N - settings.entropy_coefficient * scores.entropy_N
        if here.reference_logprobs_N is not None:
            kl_N = self.algorithm.kl(scores.logprobs_N, here.reference_logprobs_N)
            seen["policy/reference_kl"] = kl_N.detach()
            if settings.kl.place == "loss":
                total_N = total_N + self.kl_coefficient * kl_N
        if settings.off_policy.name != "none":
            seen["offpolicy/weight"] = correction_N
        if with_divergence:
            seen["offpolicy/logprob_difference"] = (now_N - rollout_N).abs()
            seen["offpolicy/kl"] = engine_divergence(now_N, rollout_N)
        return total_N, seen

    # --- the critic ------------------------------------------------------------------------------------------------

    def _update_critic(self, batch: CreditedBatch, chosen: Sequence[int], step: int) -> dict[str, float]:
        """Some steps of the critic on the chosen samples; the mean of what they did. One in closed form takes none."""
        assert batch.credit.valued_N is not None
        if isinstance(self.critic, ClosedFormCritic):
            return {}
        samples, sums = batch.experience.critic_samples, list[_Sums]()
        for part in _by_group(batch.experience, chosen, CRITIC_UPDATES):
            share = _share(batch, samples, part, batch.credit.valued_N)
            if share.useful:
                sums.append(self._update_critic_once(batch, share, step))
        if not sums:
            return {}
        done = [each.read() for each in sums]
        mean = {name: sum(each[name] for each in done) / len(done) for name in done[0]}
        self.critic_skips.note(loss=mean["loss/critic"], norm=mean["critic/gradient_norm"])
        return mean

    def _update_critic_once(self, batch: CreditedBatch, share: _Share, step: int) -> _Sums:
        assert self.critic is not None
        assert not isinstance(self.critic, ClosedFormCritic)
        num_valued = self._num_valued(batch, share)
        running = _Sums()
        for micro in self.models.compute.pack(share.samples, share.useful):
            values_N = value(self.critic, micro.to(self.device), self.models.compute)
            here = batch.arrays.at(send(micro.tokens_N, self.device))
            loss = self._value_objective(here, values_N, num_valued)
            loss.backward()  # type: ignore[no-untyped-call]
            running.add({"loss/critic": loss.detach()})
        self._step_critic(running, step)
        return running

    def _num_valued(self, batch: CreditedBatch, share: _Share) -> int:
        valued_N = batch.credit.valued_N
        return 0 if valued_N is None else int(valued_N[share.tokens_N].sum())

    def _value_objective(self, here: TokenArrays, values_N: Tensor, num_valued: int) -> Tensor:
        """The value loss of a micro-batch as its share of the update's mean."""
        assert here.valued_N is not None
        assert here.returns_N is not None
        assert here.old_values_N is not None
        loss_N = value_loss(
            values_N, here.old_values_N, here.returns_N, clip_range=self.algorithm.settings.critic.value_clip
        )
        return loss_N.masked_fill(~here.valued_N, 0.0).sum() / max(1, num_valued)

    def _correct_head(self, batch: CreditedBatch) -> None:
        """After a batch, do for a trained critic's head what gradient steps are bad at: all of the way from zero after
        the first batch, part of the way after later ones."""
        critic, credit, values_N = self.critic, batch.credit, batch.arrays.old_values_N
        if critic is None or isinstance(critic, ClosedFormCritic):
            return
        if credit.valued_N is None or values_N is None or batch.critic_hidden_N is None or not credit.valued_N.any():
            return
        chosen_N = credit.valued_N
        group_N = batch.experience.table.group_R[batch.experience.table.trajectory_of_token_N]
        self._head_is_solved |= correct_head(
            critic.head,
            batch.critic_hidden_N[send(chosen_N, self.device)],
            observed_returns(credit) - values_N.cpu()[chosen_N],
            group_N[chosen_N],
            share=CORRECTION if self._head_is_solved else 1.0,
        )

    def _step_critic(self, running: _Sums, step: int) -> None:
        assert self.critic is not None
        assert not isinstance(self.critic, ClosedFormCritic)
        assert self.critic_optimizer is not None
        norm = guarded_step(
            self.critic_optimizer,
            self.critic.parameters(),
            loss=running["loss/critic"],
            gradient_clip=self._optimizer_config.gradient_clip,
            learning_rate=self._rate(self.algorithm.settings.critic.learning_rate, step),
        )
        running.add({"critic/gradient_norm": norm})

    def _rate(self, peak: float, step: int) -> float:
        """The learning rate of a training step: a linear rise over the warm-up, a linear fall to the final fraction."""
        settings = self._optimizer_config
        rise = min(1.0, (step + 1) / (settings.warmup_steps + 1))
        fall = 1.0 - (1.0 - settings.final_fraction) * min(1.0, step / max(1, self._total_steps - 1))
        return peak * rise * fall

    # --- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to continue as if it had never stopped."""
        state: dict[str, Any] = {
            "policy": saved_state(self.policy),
            "policy_optimizer": self.policy_optimizer.state_dict(),
            "kl_coefficient": self.kl_coefficient,
            "skips": [[skips.total, skips.in_a_row] for skips in (self.policy_skips, self.critic_skips)],
        }
        if self.critic is not None:
            state |= {"critic": self.critic.state_dict(), "head_is_solved": self._head_is_solved}
        if self.critic_optimizer is not None:
            state["critic_optimizer"] = self.critic_optimizer.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        restore_state(self.policy, state["policy"])
        self.policy_optimizer.load_state_dict(state["policy_optimizer"])
        self.kl_coefficient = float(state["kl_coefficient"])
        for skips, saved in zip((self.policy_skips, self.critic_skips), state["skips"], strict=True):
            skips.total, skips.in_a_row = saved
        if self.critic is not None:
            self.critic.load_state_dict(state["critic"])
            self._head_is_solved = bool(state["head_is_solved"])
        if self.critic_optimizer is not None:
            self.critic_optimizer.load_state_dict(state["critic_optimizer"])
        self._growth = WeightGrowth(self.policy)

    # --- what the training loop needs to know ----------------------------------------------------------------------

    def weights(self, *, unmerged: Collection[str] = ()) -> Iterator[tuple[str, Tensor]]:
        """The policy's weights as an engine takes them; see `Learner.weights`."""
        return merged_weights(self.policy, apart=unmerged)

    def export(
        self, folder: Path, *, tokenizer: Any, config: Config, sampling: SamplingParams | None = None
    ) -> Rounding | None:
        """Write the policy to a Hugging Face folder; see `Learner.export`."""
        return export_policy(self.policy, tokenizer, folder, config, sampling=sampling)

    def check_growth(self) -> None:
        """Raise `DivergenceError` when the weights have exploded since the learner was made or restored."""
        self._growth.check(**{"optimizer.learning_rate": self._optimizer_config.learning_rate})

    def checkpoint_bytes(self) -> int:
        """About the size of a checkpoint: the trained weights and AdamW's two means of their gradients. The sums of a
        closed-form critic are one small matrix."""
        modules = [module for module in (self.policy, self.critic) if isinstance(module, nn.Module)]
        return 3 * sum(weight.nbytes for module in modules for weight in module.parameters() if weight.requires_grad)

    def model_bytes(self) -> int:
        """The size of the policy's weights."""
        return sum(weight.nbytes for weight in self.policy.parameters())

    def memory(self) -> float | None:
        """The most GPU memory that the process has held, in GB; None on a CPU."""
        return torch.cuda.max_memory_reserved(self.device) / 1e9 if self.device.type == "cuda" else None


def make_learner(config: Config, policy: nn.Module, algorithm: Algorithm) -> TorchLearner:
    """The learner of a run. The policy is changed in place (adapters, float32 weights, compiled layers): an engine that
    copies it is made before."""
    models = make_models(config, policy, algorithm)
    tune_layers(config, models)
    return TorchLearner(
        models=models,
        algorithm=algorithm,
        optimizer=config.optimizer,
        max_skipped_updates=config.trainer.max_skipped_updates,
        total_steps=config.trainer.steps,
        seed=config.trainer.seed,
    )
