"""The models of a run: policy, reference and critic, made as the configuration says."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from agent_r1.algorithms import Algorithm
from agent_r1.config import Config
from agent_r1.learner.compute import Compute, make_compute
from agent_r1.learner.critics import AnyCritic, Critic, make_critic
from agent_r1.models import add_adapters, checkpoint_layers, compile_layers, freeze_vision, train_in_float32


@dataclass(frozen=True, kw_only=True, slots=True)
class Models:
    """The models of a run."""

    policy: nn.Module
    """The model being trained."""
    reference: nn.Module | None
    """The policy the run started from; None when nothing needs it. Its adapters, if any, are switched off while it is
    scored, so a policy with adapters is its own reference."""
    critic: AnyCritic | None
    """Estimates values; None for algorithms without a critic."""
    compute: Compute
    """How they are run."""


def make_models(config: Config, policy: nn.Module, algorithm: Algorithm) -> Models:
    """The policy with the models its algorithm needs; a KL coefficient of 0 needs no reference.

    Adapters are added last: a critic with its own trunk is a whole model, copied before them. A policy that has
    adapters is its own reference.
    """
    settings = config.algorithm
    freeze_vision(policy, config.model.train_vision)
    critic = (
        make_critic(policy, settings.critic, within_steps=algorithm.values_within_steps)
        if settings.critic.enabled
        else None
    )
    reference: nn.Module | None = None
    if config.model.lora.rank:
        add_adapters(policy, config.model.lora, seed=config.trainer.seed, vision=config.model.train_vision)
        reference = policy if settings.kl.coefficient else None
    elif settings.kl.coefficient:
        train_in_float32(policy)  # before it is copied: at the start both must give the same log-probs
        reference = copy.deepcopy(policy).eval().requires_grad_(False)
    return Models(policy=policy, reference=reference, critic=critic, compute=make_compute(config, policy))


def tune_layers(config: Config, models: Models) -> None:
    """Compile the models' layers, and recompute activations in the backward pass, where the configuration says so."""
    if config.trainer.compile:
        for decoder in _decoders(models):
            compile_layers(decoder)
    if config.trainer.gradient_checkpointing:
        checkpoint_layers(models.policy)
        if isinstance(models.critic, Critic):
            checkpoint_layers(models.critic.trunk)


def _decoders(models: Models) -> list[nn.Module]:
    """The decoders of a run's models, each once: a shared critic or a policy that is its own reference adds none."""
    decoders: list[nn.Module] = [cast(Any, models.policy).get_decoder()]
    if models.reference is not None and models.reference is not models.policy:
        decoders.append(cast(Any, models.reference).get_decoder())
    if isinstance(models.critic, Critic):
        decoders.append(models.critic.trunk)
    return decoders
