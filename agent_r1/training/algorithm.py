"""The algorithm a configuration names, as functions; the learner knows no other form of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from agent_r1.algorithms import (
    Aggregation,
    Credit,
    KLEstimator,
    LossInputs,
    StepTable,
    TokenLosses,
    aggregations,
    estimators,
    kl_estimators,
    policy_losses,
)
from agent_r1.config import AlgorithmConfig, bind_part
from agent_r1.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Algorithm:
    """What is learned, as functions."""

    estimate: Callable[[StepTable], Credit]
    """From the step table to credit."""
    loss: Callable[[LossInputs], TokenLosses]
    """From log-probs and credit to a loss per token."""
    aggregate: Aggregation
    """The weight of each token."""
    kl: KLEstimator
    """Divergence from the reference, per token."""
    settings: AlgorithmConfig
    """The numbers."""


def bind_algorithm(config: AlgorithmConfig) -> Algorithm:
    """The algorithm a configuration names; wrong names and arguments, and parts that do not fit, are refused."""
    algorithm = Algorithm(
        estimate=bind_part(estimators, "algorithm.estimator", config.estimator),
        loss=bind_part(policy_losses, "algorithm.loss", config.loss),
        aggregate=aggregations.get(config.aggregation),
        kl=kl_estimators.get(config.kl.estimator),
        settings=config,
    )
    _rehearse(algorithm)
    return algorithm


def _rehearse(algorithm: Algorithm) -> None:
    """Run the parts once on two tiny trajectories, so that what cannot work is known before a model is loaded."""
    critic = algorithm.settings.critic.enabled
    table = StepTable(
        rewards_S=torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64),
        lengths_S=torch.tensor([2, 1, 3]),
        trajectory_S=torch.tensor([0, 0, 1]),
        group_R=torch.tensor([0, 0]),
        truncated_R=torch.tensor([False, True]),
        values_N=torch.zeros(6, dtype=torch.float64) if critic else None,
        bootstrap_R=torch.zeros(2, dtype=torch.float64) if critic else None,
    )
    try:
        credit = algorithm.estimate(table)
        inputs = LossInputs(
            policy_logprobs_N=torch.full((6,), -1.0),
            old_logprobs_N=torch.full((6,), -1.0),
            advantages_N=credit.advantages_N.float(),
            step_N=table.step_of_token_N,
        )
        algorithm.loss(inputs)
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        parts = f"{algorithm.settings.estimator} and {algorithm.settings.loss}"
        raise ConfigError(f"the algorithm's parts {parts} do not work together: {error}") from error
    if critic and credit.returns_N is None:
        raise ConfigError(
            f"algorithm.critic.enabled=true, but the estimator '{algorithm.settings.estimator.get('name')}' gives a "
            "critic nothing to learn; use token_gae or step_gae, or switch the critic off"
        )
