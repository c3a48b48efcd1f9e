"""Our advantage estimators with verl's signature: padded rows in, padded rows out, the same numbers.

verl gives an estimator the rewards of tokens, the response mask and a group id per row; steps are the runs of the mask.
What it does not give cannot be estimated with: `REFUSED` says so by name, and what to use instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from agent_r1.algorithms import Credit, StepTable
from agent_r1.errors import ConfigError

VerlEstimator = Callable[..., tuple[Tensor, Tensor]]
"""verl's form: `(token_level_rewards, response_mask, config, index, reward_baselines) -> (advantages, returns)`."""

REFUSED: Mapping[str, str] = {
    "token_gae": (
        "verl gives an estimator of others no values of its critic; use verl's own, algorithm.adv_estimator=gae, which "
        "computes the same"
    ),
    "step_gae": (
        "its critic learns at the first token of each step alone, and verl has neither values nor a critic mask for an "
        "estimator of others; use algorithm.adv_estimator=gae, whose time is tokens, or train in Agent-R1"
    ),
    "gigpo": (
        "it compares steps that started from the same observation, and verl gives an estimator no observations; use "
        "agent_r1/step_group, or train in Agent-R1"
    ),
    "greedy_baseline": (
        "verl samples greedy rollouts for its own estimator alone; use algorithm.adv_estimator=remax, which computes "
        "the same for a reward at the end"
    ),
}
"""Estimators of ours that verl cannot carry, and what to use instead."""


def refuse(kind: str, name: str, why: str) -> NoReturn:
    """Raise the one error of a part that verl cannot carry."""
    raise ConfigError(f"the {kind} '{name}' of Agent-R1 cannot be used inside verl: {why}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """verl's rows [B, L] as a step table, and the way back. A row without a sampled token is in no table."""

    table: StepTable
    """The steps of all rows that have any."""
    mask: Tensor
    """[B, L] True at sampled tokens, which are the table's tokens in this order."""

    def spread(self, values_N: Tensor, like: Tensor) -> Tensor:
        """[N] as [B, L]; 0 where nothing was sampled."""
        return torch.zeros_like(like, device="cpu").masked_scatter(self.mask, values_N.to(like.dtype)).to(like.device)


def step_numbers(mask: Tensor) -> Tensor:
    """[B, L] The step of each position, counted through all rows: a run of the mask and what follows it.

    Positions before the first run of their row have the number of the row before (-1 in the first).

    >>> step_numbers(torch.tensor([[True, True, False, True], [False, True, False, False]]))
    tensor([[0, 0, 0, 1],
            [1, 2, 2, 2]])
    """
    before = torch.nn.functional.pad(mask, (1, 0))[:, :-1]
    return ((mask & ~before).flatten().cumsum(0) - 1).view(mask.shape)


def read_rows(
    token_level_rewards: Tensor, response_mask: Tensor, index: Sequence[Any], reward_baselines: Tensor | None = None
) -> Rows:
    """The step table of verl's rows. Rewards may stand on the last token of a step, or on tokens that were not sampled,
    which count for the step before them."""
    mask, rewards = response_mask.bool().cpu(), token_level_rewards.double().cpu()
    if len(index) != len(mask):
        raise ConfigError(f"verl gave {len(index)} group ids for {len(mask)} rows; each row needs its own")
    step = step_numbers(mask)
    used_R = mask.any(dim=1)
    ends = mask & ~torch.nn.functional.pad(mask, (0, 1))[:, 1:]
    within = (rewards != 0) & mask & ~ends & used_R[:, None]
    if bool(within.any()):
        row, place = (int(entry) for entry in within.nonzero()[0])
        raise ConfigError(
            f"row {row} has a reward on token {place}, within a step. Our estimators know rewards of steps; a KL "
            "penalty belongs into the loss: actor_rollout_ref.actor.use_kl_loss=True"
        )
    first_R = torch.where(mask, step, step.max() + 1).min(dim=1).values
    target = torch.maximum(step, first_R[:, None])[used_R]  # a reward before the first step counts for that
    num_steps = int(step.max()) + 1 if step.numel() else 0
    rewards_S = torch.zeros(num_steps, dtype=torch.float64).index_add(0, target.flatten(), rewards[used_R].flatten())
    row_of_step = torch.zeros(num_steps, dtype=torch.long)
    row_of_step[step[mask]] = (used_R.cumsum(0) - 1)[:, None].expand_as(mask)[mask]
    numbers: dict[Any, int] = {}
    groups = [
        numbers.setdefault(group, len(numbers)) for group, used in zip(index, used_R.tolist(), strict=True) if used
    ]
    table = StepTable(
        rewards_S=rewards_S,
        lengths_S=torch.bincount(step[mask], minlength=num_steps),
        trajectory_S=row_of_step,
        group_R=torch.tensor(groups, dtype=torch.long),
        greedy_returns_R=None if reward_baselines is None else reward_baselines.double().cpu()[used_R],
    )
    return Rows(table=table, mask=mask)


def verl_estimator(estimate: Callable[[StepTable], Credit]) -> VerlEstimator:
    """An estimator of ours, with its arguments bound, as one of verl's.

    Tokens without credit get an advantage of 0. verl still counts them in its denominators; `filter_groups` of verl
    leaves out groups in which all rewards are equal, as ours does.
    """

    def compute(
        token_level_rewards: Tensor,
        response_mask: Tensor,
        config: Any = None,
        index: Sequence[Any] | None = None,
        reward_baselines: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor]:
        if index is None:
            raise ConfigError("verl gave no group ids (uid), which our estimators need to know the members of a group")
        if config is not None and config.get("use_kl_in_reward", False):
            raise ConfigError(
                "algorithm.use_kl_in_reward puts a penalty on every token, which our estimators inside verl cannot "
                "tell from the task's reward; use actor_rollout_ref.actor.use_kl_loss=True instead"
            )
        rows = read_rows(token_level_rewards, response_mask, index, reward_baselines)
        credit = estimate(rows.table)
        advantages = rows.spread(credit.advantages_N.masked_fill(~credit.credited_N, 0.0), token_level_rewards)
        return advantages, advantages.clone()

    return compute


def refused_estimator(name: str) -> VerlEstimator:
    """An estimator that verl finds under its name, and that says why it cannot be used."""

    def compute(*_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        refuse("estimator", name, REFUSED[name])

    return compute
