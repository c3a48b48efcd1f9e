"""`Algorithm`: the functions that a configuration selects, checked before a model is loaded."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_r1.algorithms.aggregation import Aggregation, aggregations
from agent_r1.algorithms.estimators import Credit, estimators
from agent_r1.algorithms.kl import KLEstimator, kl_estimators
from agent_r1.algorithms.lazy_torch import torch
from agent_r1.algorithms.losses import LossInputs, TokenLosses, policy_losses
from agent_r1.algorithms.off_policy import Correction, corrections
from agent_r1.algorithms.table import StepTable
from agent_r1.config import PART_KEYS, AlgorithmConfig, preset_values
from agent_r1.errors import ConfigError
from agent_r1.registry import Part, bind_part
from agent_r1.types import Observation


@dataclass(frozen=True, kw_only=True, slots=True)
class Algorithm:
    """An algorithm as functions."""

    estimate: Callable[[StepTable], Credit]
    """Computes credit from the step table."""
    loss: Callable[[LossInputs], TokenLosses]
    """Computes a loss per token from log-probs and credit."""
    aggregate: Aggregation
    """The weight of each token."""
    correct: Correction
    """The weight of each token for being sampled by another policy than the trainer's."""
    kl: KLEstimator
    """Divergence from the reference, per token."""
    settings: AlgorithmConfig
    """The configuration."""

    @property
    def num_updates(self) -> int:
        """Optimizer steps of the policy per batch."""
        return self.settings.epochs * self.settings.minibatches

    @property
    def bypasses_old_policy(self) -> bool:
        """The engine's log-probs are used as the old policy's, without a pass of the trainer."""
        if self.settings.old_logprobs != "auto":
            return self.settings.old_logprobs == "rollout"
        return self.num_updates == 1 and not self.corrects_off_policy and not self.kl_in_reward

    @property
    def corrects_off_policy(self) -> bool:
        """Tokens are weighted for being sampled by another policy than the trainer's."""
        return self.settings.off_policy.name != "none"

    @property
    def accounts_for_stale_tokens(self) -> bool:
        """Tokens are weighted by how likely they have become since they were sampled: through a correction, or through
        the loss's ratio when that starts from the log-probs the token was sampled with."""
        return self.corrects_off_policy or (self.bypasses_old_policy and _reads_ratio(self.loss))

    @property
    def values_within_steps(self) -> bool:
        """The estimator needs values before all action tokens, not only before the first token of a step."""
        valued_N = self.estimate(_two_trajectories(self.settings)).valued_N
        return valued_N is not None and bool(valued_N[1])

    @property
    def needs_greedy(self) -> bool:
        """The estimator compares with a greedy rollout of each task: it raises without one."""
        if _is_preset(self.settings):  # one that needs it plans it
            return self.settings.group_plan == "with_greedy"
        try:
            self.estimate(replace(_two_trajectories(self.settings), greedy_returns_R=None))
        except (TypeError, ValueError, RuntimeError, AttributeError):
            return True
        return False

    @property
    def credits_single_rollouts(self) -> bool:
        """The estimator gives credit to the only rollout of a task: it does not compare the members of a group."""
        table = replace(_two_trajectories(self.settings), group_R=torch.tensor([0, 1]))
        try:
            return bool(self.estimate(table).credited_N.any())
        except (TypeError, ValueError, RuntimeError, AttributeError):  # it says so itself when it meets such a batch
            return True

    @property
    def kl_in_reward(self) -> bool:
        """Divergence is subtracted from the reward."""
        return bool(self.settings.kl.coefficient) and self.settings.kl.place == "reward"


def bind_algorithm(config: AlgorithmConfig) -> Algorithm:
    """The algorithm a configuration selects; its `settings` have every argument of every part. Raises `ConfigError` for
    wrong names and arguments, and for parts that do not fit."""
    algorithm = Algorithm(
        estimate=bind_part(estimators, "algorithm.estimator", config.estimator),
        loss=bind_part(policy_losses, "algorithm.loss", config.loss),
        aggregate=bind_part(aggregations, "algorithm.aggregation", config.aggregation),
        correct=bind_part(corrections, "algorithm.off_policy", config.off_policy),
        kl=kl_estimators.get(config.kl.estimator),
        settings=_with_defaults(config),
    )
    _refuse_contradictions(config)
    if not _is_preset(config):
        _rehearse(algorithm)
    return algorithm


def _with_defaults(config: AlgorithmConfig) -> AlgorithmConfig:
    """The settings, with the defaults of the functions that its parts name filled in."""
    return replace(
        config,
        estimator=config.estimator.with_defaults(estimators.get(config.estimator.name)),
        loss=config.loss.with_defaults(policy_losses.get(config.loss.name)),
        aggregation=config.aggregation.with_defaults(aggregations.get(config.aggregation.name)),
        off_policy=config.off_policy.with_defaults(corrections.get(config.off_policy.name)),
    )


def _refuse_contradictions(config: AlgorithmConfig) -> None:
    """Raise for settings that exclude each other or would have no effect."""
    critic = config.critic
    settings = {
        "bootstrap": critic.bootstrap,
        "privileged": critic.privileged is not None,
        "warmup_steps": critic.warmup_steps > 0,
    }
    unread = [name for name, is_set in settings.items() if is_set]
    if unread and not critic.enabled:
        raise ConfigError(
            f"algorithm.critic.{unread[0]} is set, but this algorithm has no critic; use one that has (ppo, steppo, "
            "pspo) or leave it out"
        )
    if critic.kind == "shared" and critic.privileged is not None:
        raise ConfigError(
            "algorithm.critic.kind=shared and algorithm.critic.privileged exclude each other: a head that is trained "
            "in the policy's own pass sees what the policy sees. Use kind=closed_form or kind=own, or set privileged "
            "to null"
        )
    if config.kl.target is not None and not config.kl.coefficient:
        raise ConfigError("algorithm.kl.target moves a coefficient; start it above 0 with algorithm.kl.coefficient")
    if config.old_logprobs == "rollout" and config.off_policy.name != "none":
        raise ConfigError(
            "algorithm.old_logprobs=rollout leaves nothing for algorithm.off_policy to correct: the ratio already "
            "starts from the engine's log-probs. Use old_logprobs=trainer, or off_policy.name=none"
        )


def _two_trajectories(settings: AlgorithmConfig) -> StepTable:
    """A tiny batch, with everything that the algorithm's settings provide to an estimator."""
    critic = settings.critic.enabled
    return StepTable(
        rewards_S=torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64),
        lengths_S=torch.tensor([2, 1, 3]),
        trajectory_S=torch.tensor([0, 0, 1]),
        group_R=torch.tensor([0, 0]),
        values_N=torch.zeros(6, dtype=torch.float64) if critic else None,
        bootstrap_R=torch.zeros(2, dtype=torch.float64) if critic else None,
        greedy_returns_R=torch.zeros(2, dtype=torch.float64) if settings.group_plan != "sampled" else None,
        observations_S=(Observation(text="a"), Observation(text="b"), Observation(text="a")),
    )


def _is_preset(config: AlgorithmConfig) -> bool:
    """Whether these are the parts of a preset of the library: they fit, which a test shows. What may differ from the
    preset is arguments, and those are checked by their annotations."""
    preset = preset_values("algorithm", config.preset)
    if preset is None:
        return False
    parts = AlgorithmConfig(**{key: preset[key] for key in PART_KEYS if key in preset})
    return (
        all(getattr(config, key).name == getattr(parts, key).name for key in PART_KEYS)
        and config.critic.kind == preset.get("critic", {}).get("kind")
        and config.group_plan == preset.get("group_plan", parts.group_plan)
    )


def _rehearse(algorithm: Algorithm) -> None:
    """Run the parts once on two tiny trajectories, so that errors are raised before a model is loaded."""
    settings = algorithm.settings
    critic, table = settings.critic.enabled, _two_trajectories(settings)
    logprobs_N, step_N = torch.full((6,), -1.0), table.step_of_token_N
    with _trying("estimator", settings.estimator):
        credit = algorithm.estimate(table)
        _check_credit(credit, len(step_N))
    with _trying("loss", settings.loss), torch.enable_grad():
        weights_N = logprobs_N.clone().requires_grad_()
        inputs = LossInputs(
            policy_logprobs_N=weights_N * 1.0,  # computed, as in a run: a loss may change it in place
            old_logprobs_N=logprobs_N,
            advantages_N=credit.advantages_N.float().masked_fill(~credit.credited_N, 0.0),
            step_N=step_N,
        )
        _check_losses(algorithm.loss(inputs), len(step_N))
    with _trying("off_policy", settings.off_policy):
        algorithm.correct(logprobs_N, logprobs_N, step_N)
    with _trying("aggregation", settings.aggregation):
        algorithm.aggregate(credit.credited_N, step_N, table.trajectory_of_token_N)
    if critic and credit.returns_N is None:
        raise ConfigError(
            f"algorithm.critic.kind={settings.critic.kind}, but the estimator '{settings.estimator.name}' gives "
            "a critic nothing to learn; use token_gae or step_gae, or set algorithm.critic.kind=null"
        )


def _check_credit(credit: Any, num_tokens: int) -> None:
    """Raise a TypeError or ValueError for something that no estimator may return: it would fail in the middle of a run,
    or be broadcast to other tokens."""
    if not isinstance(credit, Credit):
        raise TypeError(f"it returned a {type(credit).__name__}; return Credit.of_trajectories(...) or Credit.of_steps")
    for name in ("advantages_N", "credited_N", "returns_N", "valued_N", "observed_N"):
        values = getattr(credit, name)
        if values is not None or name in ("advantages_N", "credited_N"):
            _check_tensor(f"Credit.{name}", values, num_tokens)
    if credit.credited_N.dtype is not torch.bool:
        raise TypeError(f"Credit.credited_N has the type {credit.credited_N.dtype}; it must be torch.bool")
    if not credit.advantages_N[credit.credited_N].isfinite().all():
        raise ValueError(
            f"Credit.advantages_N is {credit.advantages_N.tolist()}; every token in credited_N needs a finite number. "
            "Leave tokens that have none out of credited_N"
        )


def _check_losses(losses: Any, num_tokens: int) -> None:
    if not isinstance(losses, TokenLosses):
        raise TypeError(f"it returned a {type(losses).__name__}; return TokenLosses(loss_N=...)")
    _check_tensor("TokenLosses.loss_N", losses.loss_N, num_tokens)
    for name, values in losses.metrics_N.items():
        _check_tensor(f"TokenLosses.metrics_N[{name!r}]", values, num_tokens)
    if not losses.loss_N.isfinite().all():
        raise ValueError(f"TokenLosses.loss_N is {losses.loss_N.tolist()}; every token needs a finite number")
    if not losses.loss_N.requires_grad:
        raise ValueError(
            "TokenLosses.loss_N has no gradient, so it would train nothing; compute it from inputs.policy_logprobs_N, "
            "the only input with one"
        )


def _check_tensor(what: str, values: Any, num_tokens: int) -> None:
    if not isinstance(values, torch.Tensor):
        raise TypeError(f"{what} is a {type(values).__name__}; it must be a tensor")
    if tuple(values.shape) != (num_tokens,):
        raise ValueError(
            f"{what} has the shape {tuple(values.shape)}; it must have one number per action token, here "
            f"({num_tokens},)"
        )


def _reads_ratio(loss: Callable[[LossInputs], TokenLosses]) -> bool:
    """Whether the loss depends on the old log-probs: `clip` and `cispo` do, the plain policy gradient does not."""
    now_N, step_N = torch.full((2,), -1.0), torch.tensor([0, 1])
    losses = [
        loss(
            LossInputs(
                policy_logprobs_N=now_N, old_logprobs_N=old_N, advantages_N=torch.tensor([1.0, -1.0]), step_N=step_N
            )
        ).loss_N
        for old_N in (now_N, now_N - 0.5)
    ]
    return not torch.equal(*losses)


@contextmanager
def _trying(key: str, part: Part) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except (TypeError, ValueError, RuntimeError, AttributeError, LookupError, ArithmeticError, AssertionError) as error:
        # The text of a KeyError is a bare key, and that of an `assert` is empty.
        problem = f"{type(error).__name__} {error}" if isinstance(error, LookupError | AssertionError) else error
        raise ConfigError(f"algorithm.{key}={part.as_mapping()} does not work: {problem}{_place(error)}") from error


def _place(error: BaseException) -> str:
    """Where the part's own code stands in a traceback, ` (mine.py, line 8)`; nothing when a check of ours raised."""
    library = Path(__file__).parents[1]
    for frame in traceback.extract_tb(error.__traceback__):
        if not Path(frame.filename).is_relative_to(library):
            return f" ({Path(frame.filename).name}, line {frame.lineno})"
    return ""
