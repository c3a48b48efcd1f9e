"""The credit of recorded rollouts without a model: what a critic and a KL penalty added is taken from the record."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TypeVar

import torch

from agent_r1.algorithms import Algorithm
from agent_r1.config import KLConfig
from agent_r1.learner import CriticView, Experience, gather_experience, with_token_penalty
from agent_r1.rewards import RewardShaping
from agent_r1.training.replay.record import RecordedCredit, RecordedStep
from agent_r1.types import Numbers, StepCredit

T = TypeVar("T")

Key = tuple[int, int, int]
"""A trajectory: its training step, its group, its number in the group."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayedTrajectory:
    """What a trajectory earns under a reward and an estimator."""

    rewards: tuple[float, ...]
    """The reward of each of its steps."""
    advantages: tuple[Numbers, ...] | None
    """The advantage of each token, by step; None for a token without credit. None: they cannot be computed."""

    @property
    def advantage(self) -> float | None:
        """The mean over its tokens with credit; None without any."""
        credited = [number for numbers in self.advantages or () for number in numbers if number is not None]
        return fmean(credited) if credited else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayedCredit:
    """The credit of some steps."""

    trajectories: Mapping[Key, ReplayedTrajectory]
    """The trajectories that would be trained on."""
    missing: str | None = None
    """Why there are no advantages; None when there are."""
    approximation: str | None = None
    """What the advantages leave out, because it was not recorded; None when they leave nothing out."""


def credit_without_models(
    steps: list[RecordedStep], algorithm: Algorithm, shaping: RewardShaping, *, recorded: KLConfig
) -> ReplayedCredit:
    """The credit of recorded steps under an algorithm, in order: balancing may carry state from step to step.

    `recorded` are the settings with which a KL penalty in the reward was recorded.
    """
    kl = algorithm.settings.kl
    scale = kl.coefficient / recorded.coefficient if recorded.coefficient else 1.0
    trajectories: dict[Key, ReplayedTrajectory] = {}
    missing = None
    lacks_penalties = False
    for step in steps:
        experience = gather_experience(step.groups, shaping, CriticView(None, lambda text: ()))
        missing = missing or _missing(experience, step, algorithm)
        lacks_penalties |= algorithm.kl_in_reward and _column(experience, step.credit, _penalties) is None
        advantages = None if missing else _advantages(experience, step, algorithm, scale)
        rewards = _by_trajectory(experience, experience.table.rewards_S.tolist())
        for index, trajectory in enumerate(experience.trajectories):
            trajectories[step.step, trajectory.group_id, trajectory.member] = ReplayedTrajectory(
                rewards=tuple(rewards[index]),
                advantages=None if advantages is None else tuple(advantages[index]),
            )
    if missing:
        trajectories = {key: replace(trajectory, advantages=None) for key, trajectory in trajectories.items()}
    approximation = None
    if lacks_penalties and not missing:
        approximation = (
            "the KL penalty in the reward, which was not recorded (tracking.record_credit=true records it), is left "
            "out of all advantages"
        )
    elif algorithm.kl_in_reward and not missing and _other_penalty(kl, recorded):
        approximation = (
            "the KL penalty in the reward is the recorded one times the change of algorithm.kl.coefficient; what "
            "another estimator, target or horizon makes of it needs the model"
        )
    return ReplayedCredit(trajectories=trajectories, missing=missing, approximation=approximation)


def _other_penalty(kl: KLConfig, recorded: KLConfig) -> bool:
    """Whether a KL penalty differs from the recorded one in more than its size."""
    # A `+` changes the gradient of an estimator, not its value; a horizon says how fast a target is approached.
    return (kl.estimator.rstrip("+"), kl.target, kl.target and kl.horizon) != (
        recorded.estimator.rstrip("+"),
        recorded.target,
        recorded.target and recorded.horizon,
    )


def _missing(experience: Experience, step: RecordedStep, algorithm: Algorithm) -> str | None:
    """What an algorithm needs and the record of a step does not have."""
    name = algorithm.settings.preset or algorithm.settings.estimator.name
    if algorithm.needs_greedy and experience.table.greedy_returns_R is None:
        return f"{name} compares with greedy rollouts, and step {step.step} has recorded none"
    if algorithm.settings.critic.enabled and _column(experience, step.credit, _values) is None:
        return (
            f"{name} needs the values of a critic, and step {step.step} has recorded none: a run with a critic "
            "records them with tracking.record_credit=true. Choose an algorithm without one, such as algorithm=grpo"
        )
    if algorithm.settings.critic.enabled and step.credit is not None:
        values = _next_values(experience, step.credit)
        if any(values[index] is None for index in experience.cut_states):
            return (
                f"algorithm.critic.bootstrap=true needs the critic's value after each truncated episode, and step "
                f"{step.step} has not recorded it: its truncated episodes were scored"
            )
    return None


def _next_values(experience: Experience, credit: RecordedCredit) -> list[float | None]:
    """The recorded value after each trajectory that is bootstrapped; None for others: they are scored, never both."""
    return [
        credit[trajectory.group_id, trajectory.member][-1].next_value if index in experience.cut_states else None
        for index, trajectory in enumerate(experience.trajectories)
    ]


def _advantages(
    experience: Experience, step: RecordedStep, algorithm: Algorithm, penalty_scale: float
) -> list[list[Numbers]]:
    """The advantages of a step's trajectories, each as tokens by step."""
    table = experience.table
    if not table.num_tokens:
        return [[() for _ in trajectory.steps] for trajectory in experience.trajectories]
    penalties = _column(experience, step.credit, _penalties) if algorithm.kl_in_reward else None
    if penalties is not None:
        table = with_token_penalty(table, penalty_scale * torch.tensor(penalties, dtype=torch.float64))
    if algorithm.settings.critic.enabled:
        values = _column(experience, step.credit, _values)
        assert values is not None
        assert step.credit is not None
        table = replace(
            table,
            values_N=torch.tensor(values, dtype=torch.float64),
            bootstrap_R=torch.tensor(
                [value or 0.0 for value in _next_values(experience, step.credit)], dtype=torch.float64
            ),
        )
    credit = algorithm.estimate(table)
    numbers = [
        number if is_credited else None
        for number, is_credited in zip(credit.advantages_N.tolist(), credit.credited_N.tolist(), strict=True)
    ]
    ends = table.lengths_S.cumsum(0).tolist()
    return _by_trajectory(experience, [tuple(numbers[first:end]) for first, end in zip([0, *ends], ends, strict=False)])


def _by_trajectory(experience: Experience, by_step: Sequence[T]) -> list[list[T]]:
    """What belongs to steps, sorted by trajectory."""
    result: list[list[T]] = [[] for _ in experience.trajectories]
    for owner, entry in zip(experience.table.trajectory_S.tolist(), by_step, strict=True):
        result[owner].append(entry)
    return result


def _column(
    experience: Experience, credit: RecordedCredit | None, numbers_of: Callable[[StepCredit], Numbers]
) -> list[float] | None:
    """A recorded number per token, in the order of the experience, 0 where there is none; None when some trajectory
    has not recorded it."""
    numbers: list[float] = []
    for trajectory in experience.trajectories:
        steps = None if credit is None else credit.get((trajectory.group_id, trajectory.member))
        if steps is None:
            return None
        for recorded, step in zip(steps, trajectory.steps, strict=True):
            column = numbers_of(recorded)
            if len(column) != len(step.action_ids):
                return None
            numbers += [0.0 if number is None or not math.isfinite(number) else number for number in column]
    return numbers


def _values(credit: StepCredit) -> Numbers:
    return credit.values


def _penalties(credit: StepCredit) -> Numbers:
    return credit.penalties
