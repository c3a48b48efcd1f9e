"""What is computed before the first update of a batch: old and reference log-probs, values, and credit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from agent_r1.algorithms import Algorithm, Credit, StepTable, engine_divergence
from agent_r1.learner.critics import AnyCritic, ClosedFormCritic
from agent_r1.learner.experience import Experience
from agent_r1.learner.models import Models
from agent_r1.learner.packing.samples import send
from agent_r1.learner.scoring import hidden_before, score_samples, value_of_states
from agent_r1.learner.sharded.peers import ONE_PROCESS, Peers
from agent_r1.models import adapters_off
from agent_r1.rewards import returns_differ
from agent_r1.types import Numbers, StepCredit, TrajectoryCredit


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenArrays:
    """What the losses need per token of a batch, on the models' device: sent once, indexed for each micro-batch.

    None where the algorithm does not need it.
    """

    step_N: Tensor
    """The step the token belongs to."""
    rollout_logprobs_N: Tensor
    """Log-prob under the engine."""
    advantages_N: Tensor
    """The advantage."""
    old_logprobs_N: Tensor | None
    """Log-prob under the policy the updates start from; None: that of the single update's own pass."""
    reference_logprobs_N: Tensor | None
    """Log-prob under the reference; None without one."""
    returns_N: Tensor | None
    """The critic's target."""
    valued_N: Tensor | None
    """Whether the critic learns from the token."""
    old_values_N: Tensor | None
    """The critic's value before the updates."""

    def at(self, tokens_N: Tensor) -> TokenArrays:
        """The arrays of some tokens."""
        return self._each(lambda tensor: tensor[tokens_N])

    def to(self, device: torch.device) -> TokenArrays:
        """The arrays on a device, floating-point numbers as float32."""
        return self._each(lambda tensor: send(tensor.float() if tensor.is_floating_point() else tensor, device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> TokenArrays:
        arrays: dict[str, Any] = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        changed: dict[str, Any] = {name: None if array is None else change(array) for name, array in arrays.items()}
        return TokenArrays(**changed)


class PassLog:
    """Log-probs and entropies of the tokens in the policy's updates, to be recorded. They stay on the models' device
    until they are asked for."""

    def __init__(self, peers: Peers = ONE_PROCESS) -> None:
        self._passes: list[tuple[Tensor, ...]] = []
        self._peers = peers

    def note(self, tokens_N: Tensor, logprobs_N: Tensor, entropy_N: Tensor) -> None:
        """Keep what a pass computed for some tokens of the batch; a later pass replaces an earlier one."""
        self._passes.append((tokens_N, logprobs_N.detach(), entropy_N.detach()))

    def last(self, num_tokens: int) -> tuple[Tensor, Tensor]:
        """Log-prob and entropy of each token of the batch in the last pass that read it; NaN: none did."""
        scores_2N = torch.full((2, num_tokens), float("nan"))
        passes = self._peers.together(self._passes)
        if passes:
            scores, first = torch.cat([torch.stack(pair) for _, *pair in passes], dim=1).float().cpu(), 0
            # One pass after the other: in a single assignment the last of several entries for a token need not win.
            for tokens_N, *_ in passes:
                scores_2N[:, tokens_N.cpu()] = scores[:, first : first + len(tokens_N)]
                first += len(tokens_N)
        return scores_2N[0], scores_2N[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class CreditedBatch:
    """Experience with everything the updates need, per token."""

    experience: Experience
    """The rollouts."""
    table: StepTable
    """The experience's table with what the estimator was given beyond it: KL in the reward, values."""
    credit: Credit
    """Advantages and the critic's targets."""
    arrays: TokenArrays
    """What the losses read, on the models' device."""
    critic_hidden_N: Tensor | None
    """The hidden states before each token, before the updates, for a critic trained by gradient; None without one."""
    metrics: Mapping[str, float]
    """Measurements made on the way."""
    passes: PassLog | None = None
    """Where the policy's updates note their scores; None: they are not recorded."""


def assign_credit(
    experience: Experience, models: Models, algorithm: Algorithm, *, kl_coefficient: float
) -> CreditedBatch:
    """Score the batch under the old policy, the reference and the critic, then run the estimator."""
    metrics: dict[str, float] = dict(experience.metrics)
    old_N = _old_logprobs(experience, models, algorithm, metrics)
    reference_N = _reference_logprobs(experience, models)
    table, values_N, hidden_N = experience.table, None, None
    if reference_N is not None and algorithm.kl_in_reward:
        assert old_N is not None
        kl_N = algorithm.kl(old_N, reference_N).double()
        metrics["reward/kl_penalty"] = float(kl_coefficient * kl_N.sum() / max(1, table.num_trajectories))
        table = with_token_penalty(table, kl_coefficient * kl_N)
    if models.critic is not None:
        table = replace(table, bootstrap_R=_bootstrap_values(experience, models, models.critic))
        values_N, hidden_N = _values(experience, table, models, algorithm, metrics)
        table = replace(table, values_N=values_N.double())
    credit = algorithm.estimate(table)
    return CreditedBatch(
        experience=experience,
        table=table,
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
        critic_hidden_N=hidden_N,
        metrics=metrics | _credit_metrics(credit, table),
    )


def recorded_credit(batch: CreditedBatch, passes: PassLog, *, gamma: float) -> list[TrajectoryCredit]:
    """The credit of every trajectory of a batch, after its last update."""
    table, credit, nan = batch.table, batch.credit, float("nan")
    logprobs_N, entropies_N = passes.last(table.num_tokens)
    old_N = batch.arrays.old_logprobs_N
    returns_S = table.returns_to_go(gamma)
    if credit.observed_N is not None:
        has_tokens_S = table.lengths_S > 0
        returns_S[has_tokens_S] = credit.observed_N.to(returns_S.dtype)[table.first_token_S[has_tokens_S]]
    values_N = None
    if table.values_N is not None and credit.valued_N is not None:
        values_N = table.values_N.masked_fill(~credit.valued_N, nan)
    arrays = {
        "advantages": credit.advantages_N.masked_fill(~credit.credited_N, nan),
        "values": values_N,
        "old_logprobs": logprobs_N if old_N is None else old_N.cpu(),
        "logprobs": logprobs_N,
        "entropies": entropies_N,
        "penalties": None if table.token_rewards_N is None else -table.token_rewards_N,
    }
    columns = {name: None if array is None else _split(array, table) for name, array in arrays.items()}
    steps_R: list[list[StepCredit]] = [[] for _ in batch.experience.trajectories]
    owners, rewards, returns = table.trajectory_S.tolist(), table.rewards_S.tolist(), returns_S.tolist()
    for index, (owner, reward, observed) in enumerate(zip(owners, rewards, returns, strict=True)):
        numbers: dict[str, Any] = {name: () if column is None else column[index] for name, column in columns.items()}
        steps_R[owner].append(StepCredit(reward=reward, observed_return=observed, **numbers))
    for owner in batch.experience.cut_states if table.bootstrap_R is not None else ():
        assert table.bootstrap_R is not None
        steps_R[owner][-1] = replace(steps_R[owner][-1], next_value=float(table.bootstrap_R[owner]))
    return [
        TrajectoryCredit(group_id=trajectory.group_id, member=trajectory.member, steps=tuple(steps))
        for trajectory, steps in zip(batch.experience.trajectories, steps_R, strict=True)
    ]


def _split(array_N: Tensor, table: StepTable) -> Sequence[Numbers]:
    """The numbers of each step; None for NaN."""
    numbers = [None if number != number else number for number in array_N.tolist()]
    ends = table.lengths_S.cumsum(0).tolist()
    return [tuple(numbers[first:end]) for first, end in zip([0, *ends], ends, strict=False)]


def _reference_logprobs(experience: Experience, models: Models) -> Tensor | None:
    if models.reference is None:
        return None
    with adapters_off(models.reference):
        return score_samples(models.reference, experience.samples, models.compute)


def _old_logprobs(
    experience: Experience, models: Models, algorithm: Algorithm, metrics: dict[str, float]
) -> Tensor | None:
    if algorithm.bypasses_old_policy:
        return experience.rollout_logprobs_N
    if algorithm.num_updates == 1 and not algorithm.kl_in_reward:
        return None
    old_N = score_samples(models.policy, experience.samples, models.compute)
    metrics |= engine_metrics(old_N, experience.rollout_logprobs_N)
    return old_N


def engine_metrics(trainer_logprobs_N: Tensor, rollout_logprobs_N: Tensor) -> dict[str, float]:
    """The difference between the engine's and the trainer's probabilities for the same weights."""
    if not len(trainer_logprobs_N):
        return {}
    return {
        "offpolicy/logprob_difference": float((trainer_logprobs_N - rollout_logprobs_N).abs().mean()),
        "offpolicy/kl": float(engine_divergence(trainer_logprobs_N, rollout_logprobs_N).mean()),
    }


def with_token_penalty(table: StepTable, penalty_N: Tensor) -> StepTable:
    """The table with a penalty per token subtracted from the reward of its step."""
    penalty_S = torch.zeros_like(table.rewards_S).index_add(0, table.step_of_token_N, penalty_N)
    return replace(table, rewards_S=table.rewards_S - penalty_S, token_rewards_N=-penalty_N)


def _values(
    experience: Experience, table: StepTable, models: Models, algorithm: Algorithm, metrics: dict[str, float]
) -> tuple[Tensor, Tensor | None]:
    """The critic's value before each action token [N], not fitted to the token's own return; and, for a critic trained
    by gradient, the hidden states it read there.

    A critic in closed form is fitted to the batch on the way, see `RidgeValues.fit`; it values only the tokens that the
    estimator needs.
    """
    critic = models.critic
    assert critic is not None
    if not isinstance(critic, ClosedFormCritic):
        everywhere_N = torch.ones(table.num_tokens, dtype=torch.bool)
        hidden_N = hidden_before(critic, experience.critic_samples, models.compute, everywhere_N)
        with torch.no_grad():
            return critic.value_of(hidden_N).cpu(), hidden_N
    values_N = torch.zeros(table.num_tokens, dtype=torch.float64)
    # Observed returns do not depend on values, so the estimator can compute them before there are any.
    blank = algorithm.estimate(replace(table, values_N=values_N))
    if blank.valued_N is not None and blank.valued_N.any():
        hidden_M = hidden_before(critic, experience.critic_samples, models.compute, blank.valued_N)
        index_N = blank.valued_N.cumsum(0) - 1
        begin_M = index_N[table.first_token_S[table.step_of_token_N[blank.valued_N]]]
        earned_M, episode_M = observed_returns(blank), table.trajectory_of_token_N[blank.valued_N]
        values_N[blank.valued_N], earlier_M = critic.fit(hidden_M, begin_M, earned_M, episode_M)
        metrics |= explained_variance(earned_M, earlier_M, "critic/explained_variance_new_tasks")
    return values_N, None


def explained_variance(earned_M: Tensor, predicted_M: Tensor, name: str) -> dict[str, float]:
    """The share of the returns' variance that predictions explain, as metric `name`; empty when returns do not vary by
    more than rounding errors.

    Returns (1, 3) predicted as (1, 2): what is left varies by 0.25, where returns vary by 1, so 0.75.
    """
    if not returns_differ(earned_M.tolist()):
        return {}
    spread = float(earned_M.var(correction=0))
    return {name: 1.0 - float((earned_M - predicted_M).var(correction=0)) / spread}


def observed_returns(credit: Credit) -> Tensor:
    """The return observed after each valued token."""
    assert credit.valued_N is not None
    earned_N = credit.returns_N if credit.observed_N is None else credit.observed_N
    assert earned_N is not None
    return earned_N[credit.valued_N]


def _bootstrap_values(experience: Experience, models: Models, critic: AnyCritic) -> Tensor:
    """The critic's value of the state each bootstrapped trajectory was truncated in; 0 for those that ended or were
    scored."""
    values_R = torch.zeros(len(experience.trajectories), dtype=torch.float64)
    cut = sorted(experience.cut_states)
    if cut:
        states = [experience.cut_states[index] for index in cut]
        values_R[torch.tensor(cut)] = value_of_states(critic, states, models.compute).double()
    return values_R


def _credit_metrics(credit: Credit, table: StepTable) -> dict[str, float]:
    """How much of the batch has credit, and how well the critic predicts it."""
    credited_R = torch.zeros(table.num_trajectories).index_add(
        0, table.trajectory_of_token_N, credit.credited_N.float()
    )
    metrics = {"policy/credited_trajectories": float((credited_R > 0).float().mean())}
    if credit.returns_N is not None and credit.valued_N is not None and table.values_N is not None:
        earned_M, predicted_M = observed_returns(credit), table.values_N[credit.valued_N]
        metrics["critic/value"] = float(predicted_M.mean())
        metrics |= explained_variance(earned_M, predicted_M, "critic/explained_variance")
    return metrics
