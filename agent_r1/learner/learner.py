"""`TorchLearner`: turns a batch of experience into updates, for any algorithm.

It knows models, minibatches and optimizers. What is learned comes in as functions (estimator, loss, aggregation,
off-policy correction, KL estimator), bound from the configuration.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agent_r1.algorithms import Algorithm, adapted_coefficient
from agent_r1.config import Config, OptimizerConfig
from agent_r1.learner.base import OnCredit
from agent_r1.learner.compute import UpdateThread
from agent_r1.learner.credit import CreditedBatch, PassLog, assign_credit, recorded_credit
from agent_r1.learner.critic_updates import CRITIC_UPDATES, correct_critic, critic_backward, num_valued
from agent_r1.learner.critics import ClosedFormCritic, Critic, SharedCritic, TrainedCritic
from agent_r1.learner.experience import Experience
from agent_r1.learner.models import Models, make_models, tune_layers
from agent_r1.learner.optimizer import MetricSums, SkipCounter, guarded_step, make_optimizer, scheduled_rate
from agent_r1.learner.packing.minibatches import Minibatch, make_minibatch, split_by_group
from agent_r1.learner.policy_updates import PolicyUpdate, token_weights
from agent_r1.learner.sharded import Ranks
from agent_r1.learner.weight_growth import WeightGrowth
from agent_r1.models import ImagePass, Rounding, export_policy, freeze_gc, merged_weights, restore_state, saved_state
from agent_r1.seeds import mix_seed
from agent_r1.types import SamplingParams

NORMS = ("policy/gradient_norm", "critic/gradient_norm")
"""Metrics of an update that are no sums over its micro-batches."""


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
        self._growth = self._measured_growth()

    async def learn(self, experience: Experience, *, step: int, on_credit: OnCredit | None = None) -> dict[str, float]:
        """Make all updates of one training step in the learner's own thread; see `Learner.learn`."""
        return await self._thread.run(lambda: self.learn_sync(experience, step=step, on_credit=on_credit))

    def learn_sync(self, experience: Experience, *, step: int, on_credit: OnCredit | None = None) -> dict[str, float]:
        """What `learn` does, in the calling thread."""
        if not experience.table.num_tokens:
            return {"loss/updates": 0.0}
        batch = assign_credit(experience, self.models, self.algorithm, kl_coefficient=self.kl_coefficient)
        if on_credit is not None:
            batch = replace(batch, passes=PassLog(self.models.compute.peers))
        metrics, times = dict(batch.metrics), Counter[str]()
        for chosen in self._minibatches(experience, step):
            for name, amount in self._update(batch, chosen, step).items():
                # The metrics of a step are means over its updates. How far the engine's log-probs are from the
                # trainer's can only be measured before the first.
                if times[name] == 0 or not name.startswith("offpolicy/"):
                    times[name] += 1
                    metrics[name] = metrics.get(name, 0.0) + (amount - metrics.get(name, 0.0)) / times[name]
        if isinstance(self.critic, TrainedCritic):
            self._head_is_solved |= correct_critic(self.critic, batch, self.device, is_solved=self._head_is_solved)
        self._adapt_kl(metrics, experience.table.num_trajectories)
        if on_credit is not None and batch.passes is not None:
            on_credit(recorded_credit(batch, batch.passes, gamma=self.algorithm.settings.gamma))
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
            updates += split_by_group(experience.table, everything, settings.minibatches, rng)
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
        credit, critic = batch.credit, self.critic
        used_N = credit.credited_N
        if critic is not None and credit.valued_N is not None:
            if step < self.algorithm.settings.critic.warmup_steps:
                return {"loss/updates": 0.0, **self._update_critic(batch, chosen, step)}
            if isinstance(critic, SharedCritic):
                used_N = credit.credited_N | credit.valued_N
        minibatch = make_minibatch(batch.experience.table, batch.experience.samples, chosen, used_N)
        metrics = self._update_policy(batch, minibatch, step)
        if isinstance(critic, Critic) and credit.valued_N is not None:
            metrics |= self._update_critic(batch, chosen, step)
        return metrics

    def _update_policy(self, batch: CreditedBatch, minibatch: Minibatch, step: int) -> dict[str, float]:
        """One optimizer step of the policy, and of a value head that shares the policy's trunk."""
        if not minibatch.indices:
            return {"loss/updates": 0.0}
        weights_N = token_weights(batch, minibatch, self.algorithm)
        images = ImagePass(self.policy, apart=True)
        update = PolicyUpdate(
            models=self.models,
            algorithm=self.algorithm,
            batch=batch,
            kl_coefficient=self.kl_coefficient,
            weights_N=weights_N,
            total_weight=max(float(weights_N.sum()), 1e-12),
            num_valued=num_valued(batch, minibatch),
            images=images,
        )
        sums, peers = MetricSums(), self.models.compute.peers
        for micro in self.models.compute.micro_batches(minibatch.samples, minibatch.indices):
            sums.add(update.backward(micro))
            # Without action tokens it is an empty one, computed because another rank computes more.
            num_tokens = float(micro.input_ids.numel() if len(micro.tokens_N) else 0)
            sums.add({"perf/update_tokens": torch.full((), num_tokens, device=self.device)})
        images.backward()
        norm = guarded_step(
            self.policy_optimizer,
            self.policy.parameters(),
            loss=peers.total(sums["loss/policy"]),
            gradient_clip=self._optimizer_config.gradient_clip,
            learning_rate=self._rate(self._optimizer_config.learning_rate, step),
            clip=peers.clip,
        )
        sums.add({"policy/gradient_norm": norm})
        if isinstance(self.critic, SharedCritic):
            self._step_critic(self.critic, sums, step)
        metrics = {**peers.totals(sums.read(), equal=NORMS), "loss/updates": 1.0}
        self.policy_skips.note(loss=metrics["loss/policy"], norm=metrics["policy/gradient_norm"])
        if isinstance(self.critic, SharedCritic):
            self.critic_skips.note(loss=metrics["loss/critic"], norm=metrics["critic/gradient_norm"])
        return metrics

    def _update_critic(self, batch: CreditedBatch, chosen: Sequence[int], step: int) -> dict[str, float]:
        """Some optimizer steps of the critic on the chosen samples; the mean of their metrics. A critic in closed form
        takes none."""
        critic, valued_N = self.critic, batch.credit.valued_N
        assert critic is not None
        assert valued_N is not None
        if isinstance(critic, ClosedFormCritic):
            return {}
        table, all_sums = batch.experience.table, list[MetricSums]()
        for part in split_by_group(table, chosen, CRITIC_UPDATES):
            minibatch = make_minibatch(table, batch.experience.critic_samples, part, valued_N)
            if minibatch.indices:
                all_sums.append(self._update_critic_once(critic, batch, minibatch, step))
        if not all_sums:
            return {}
        updates = [self.models.compute.peers.totals(sums.read(), equal=NORMS) for sums in all_sums]
        mean = {name: sum(update[name] for update in updates) / len(updates) for name in updates[0]}
        self.critic_skips.note(loss=mean["loss/critic"], norm=mean["critic/gradient_norm"])
        return mean

    def _update_critic_once(
        self, critic: TrainedCritic, batch: CreditedBatch, minibatch: Minibatch, step: int
    ) -> MetricSums:
        sums, compute, images = MetricSums(), self.models.compute, critic.images()
        count, value_clip = num_valued(batch, minibatch), self.algorithm.settings.critic.value_clip
        for micro in compute.micro_batches(minibatch.samples, minibatch.indices):
            loss = critic_backward(
                critic, batch, micro, compute, num_valued=count, value_clip=value_clip, images=images
            )
            sums.add({"loss/critic": loss})
        self._step_critic(critic, sums, step)
        return sums

    def _step_critic(self, critic: TrainedCritic, sums: MetricSums, step: int) -> None:
        assert self.critic_optimizer is not None
        norm = guarded_step(
            self.critic_optimizer,
            critic.parameters(),
            loss=self.models.compute.peers.total(sums["loss/critic"]),
            gradient_clip=self._optimizer_config.gradient_clip,
            learning_rate=self._rate(self.algorithm.settings.critic.learning_rate, step),
            clip=self.models.compute.peers.clip,
        )
        sums.add({"critic/gradient_norm": norm})

    def _rate(self, peak: float, step: int) -> float:
        return scheduled_rate(peak, step, total_steps=self._total_steps, settings=self._optimizer_config)

    # --- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to continue as if it had never stopped."""
        state: dict[str, Any] = {
            "policy": self._saved_policy(),
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
        self._restore_policy(state["policy"])
        self.policy_optimizer.load_state_dict(state["policy_optimizer"])
        self.kl_coefficient = float(state["kl_coefficient"])
        for skips, saved in zip((self.policy_skips, self.critic_skips), state["skips"], strict=True):
            skips.total, skips.in_a_row = saved
        if self.critic is not None:
            self.critic.load_state_dict(state["critic"])
            self._head_is_solved = bool(state["head_is_solved"])
        if self.critic_optimizer is not None:
            self.critic_optimizer.load_state_dict(state["critic_optimizer"])
        self._growth = self._measured_growth()

    def _saved_policy(self) -> dict[str, Any]:
        return saved_state(self.policy)

    def _restore_policy(self, saved: Mapping[str, Any]) -> None:
        restore_state(self.policy, saved)

    def _measured_growth(self) -> WeightGrowth:
        return WeightGrowth(self.policy)

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


def make_learner(config: Config, policy: nn.Module, algorithm: Algorithm, ranks: Ranks | None = None) -> TorchLearner:
    """The learner of a run. The policy is changed in place (adapters, float32 weights, compiled layers; shards, on
    several ranks): an engine that copies it is made before."""
    if ranks is not None and ranks.is_sharded:
        from agent_r1.learner.sharded.learner import make_sharded_learner

        return make_sharded_learner(config, policy, algorithm, ranks)
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
