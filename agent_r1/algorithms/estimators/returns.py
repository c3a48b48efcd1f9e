"""Estimators that need neither a critic nor the other members of a group."""

from __future__ import annotations

from agent_r1.algorithms.estimators.base import Credit, estimators, whiten
from agent_r1.algorithms.lazy_torch import torch
from agent_r1.algorithms.table import StepTable
from agent_r1.constraints import Fraction


@estimators.register("return_to_go")
def return_to_go(table: StepTable, *, gamma: Fraction = 1.0) -> Credit:
    """REINFORCE: the return from this step on, without a baseline (Williams 1992). Gamma is applied once per step.

    Rewards (.1, 1) with gamma 1 give (1.1, 1).
    """
    return Credit.of_steps(table, table.rewards_to_go_S(gamma))


@estimators.register("token_return")
def token_return(table: StepTable, *, gamma: Fraction = 1.0, whitened: bool = True) -> Credit:
    """REINFORCE++: the discounted return from each action token on, whitened over the batch's action tokens.

    Hu et al. 2025 (arXiv:2501.03262). The return is carried across steps: tokens that a tool wrote in between are
    skipped. Steps of 2 and 1 tokens with rewards (.1, 1), gamma .5, not whitened: (.3, .6, 1).
    """
    returns_N = table.per_token().rewards_to_go_S(gamma)
    return Credit(
        advantages_N=whiten(returns_N) if whitened else returns_N,
        credited_N=torch.ones(table.num_tokens, dtype=torch.bool),
    )


@estimators.register("greedy_baseline")
def greedy_baseline(table: StepTable) -> Credit:
    """ReMax: the return minus that of the greedy rollout of the same task (Li et al. 2023, arXiv:2310.10505).

    Returns (1, 0) against a greedy return of 1 give (0, -1). Without a greedy rollout there is no credit.
    """
    if table.greedy_returns_R is None:
        raise ValueError("this estimator needs a greedy rollout of each task; set algorithm.group_plan=with_greedy")
    advantages_R = table.returns_R - table.greedy_returns_R
    known_R = table.greedy_returns_R.isfinite()
    return Credit.of_trajectories(table, torch.where(known_R, advantages_R, torch.zeros_like(advantages_R)), known_R)
