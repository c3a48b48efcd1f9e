"""Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438), with steps or with tokens as time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent_r1.algorithms.estimators.base import Credit, estimators, whiten, whiten_masked
from agent_r1.algorithms.lazy_torch import torch
from agent_r1.algorithms.table import StepTable
from agent_r1.constraints import Fraction

if TYPE_CHECKING:
    from torch import Tensor


def _gae(table: StepTable, gamma: float, lam: float, values_S: Tensor) -> Tensor:
    """Generalised advantages of a table's steps."""
    return table.accumulate_S(table.td_errors_S(gamma, values_S), gamma * lam)


@estimators.register("step_gae")
def step_gae(table: StepTable, *, gamma: Fraction = 1.0, lam: Fraction = 0.95, whitened: bool = True) -> Credit:
    """GAE whose time is steps: one value before each step, gamma and lambda are applied once per step.

    One trajectory, rewards (0, 1), values (.5, .5), gamma 1, lambda 1: advantages (.5, .5) and targets (1, 1).
    """
    values_S = table.step_values_S()
    advantages_S = _gae(table, gamma, lam, values_S)
    returns_S = advantages_S + values_S
    observed_S = _gae(table, gamma, 1.0, values_S) + values_S  # with lambda 1 the values cancel out
    if whitened:
        advantages_S = whiten_masked(advantages_S, table.lengths_S > 0)
    return replace(
        Credit.of_steps(table, advantages_S),
        returns_N=returns_S[table.step_of_token_N],
        valued_N=table.first_token_N,
        observed_N=observed_S[table.step_of_token_N],
    )


@estimators.register("token_gae")
def token_gae(table: StepTable, *, gamma: Fraction = 1.0, lam: Fraction = 0.95, whitened: bool = True) -> Credit:
    """GAE whose time is action tokens, carried across steps; tokens in between are skipped.

    The value of the next step's first token bootstraps a step's last token.
    """
    tokens = table.per_token()
    values_N = tokens.step_values_S()
    advantages_N = _gae(tokens, gamma, lam, values_N)
    returns_N = advantages_N + values_N
    observed_N = _gae(tokens, gamma, 1.0, values_N) + values_N  # with lambda 1 the values cancel out
    everywhere_N = torch.ones(table.num_tokens, dtype=torch.bool)
    return Credit(
        advantages_N=whiten(advantages_N) if whitened else advantages_N,
        credited_N=everywhere_N,
        returns_N=returns_N,
        valued_N=everywhere_N,
        observed_N=observed_N,
    )
