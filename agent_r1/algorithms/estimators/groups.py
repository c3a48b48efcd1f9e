"""Estimators whose baseline is the other rollouts of the same task.

Tokens of a group whose members all earned the same get no credit. Neither do those of a group of one, except for
`step_group`, whose baseline is 0 at steps that no other member reached.
"""

from __future__ import annotations

from agent_r1.algorithms.estimators.base import (
    Credit,
    estimators,
    group_statistics,
    has_spread,
    standardize,
    whiten_masked,
)
from agent_r1.algorithms.lazy_torch import torch
from agent_r1.algorithms.table import StepTable
from agent_r1.constraints import Fraction, Positive


@estimators.register("group")
def group(table: StepTable, *, normalise_std: bool = True, epsilon: Positive = 1e-6) -> Credit:
    """GRPO: `A = (R - mean) / (std + eps)` of the group, the same on every token of the trajectory.

    Shao et al. 2024 (arXiv:2402.03300), outcome form. Returns (1, 0) give advantages (.7071, -.7071). Without the std
    it is Dr. GRPO's (Liu et al. 2025, arXiv:2503.20783).
    """
    returns_R = table.returns_R
    statistics = group_statistics(returns_R, table.group_R)
    advantages_R = returns_R - statistics.mean_R
    if normalise_std:
        advantages_R = standardize(advantages_R, statistics.std_R, epsilon)
    return Credit.of_trajectories(table, advantages_R, has_spread(table))


@estimators.register("leave_one_out")
def leave_one_out(table: StepTable) -> Credit:
    """RLOO: the return minus the mean of the *others* (Ahmadian et al. 2024, arXiv:2402.14740).

    Returns (1, 0, 0) give advantages (1, -.5, -.5).
    """
    returns_R = table.returns_R
    statistics = group_statistics(returns_R, table.group_R)
    others_R = (statistics.size_R - 1).clamp(min=1)
    advantages_R = statistics.size_R / others_R * (returns_R - statistics.mean_R)
    return Credit.of_trajectories(table, advantages_R, has_spread(table))


@estimators.register("group_whitened")
def group_whitened(table: StepTable) -> Credit:
    """REINFORCE++ with baseline: the return minus the group's mean, whitened over the tokens of the batch.

    Hu et al. 2025 (arXiv:2501.03262). Two groups with returns (1, 0) and (3, 1), one token each: deviations
    (.5, -.5, 1, -1), whose std is .9129, give (.5477, -.5477, 1.0954, -1.0954).
    """
    returns_R = table.returns_R
    deviations_R = returns_R - group_statistics(returns_R, table.group_R).mean_R
    plain = Credit.of_trajectories(table, deviations_R, has_spread(table))
    return Credit(advantages_N=whiten_masked(plain.advantages_N, plain.credited_N), credited_N=plain.credited_N)


@estimators.register("step_group")
def step_group(table: StepTable, *, gamma: Fraction = 1.0) -> Credit:
    """Step GRPO: a step's return-to-go minus the mean of it over the *other* members that reached the same step.

    The baseline of a step that no other member reached is 0, and nothing is divided by a std: a baseline made of other
    trajectories does not depend on this one's actions, so the gradient is unbiased even when the policy decides when to
    stop. Summing rewards normalised per turn index is not: it subtracts as many baselines as the trajectory itself has
    turns. Of a member that branches, the mean of its steps at that depth counts.

    Rewards (.1, 1) and (0,) in one group: returns-to-go (1.1, 1) and (0,), advantages (1.1, 1) and (-1.1,).
    """
    returns_to_go_S = table.rewards_to_go_S(gamma)
    group_S = table.group_R[table.trajectory_S]
    longest = int(table.step_index_S.max()) + 1 if len(returns_to_go_S) else 1
    _, cell_S = torch.unique(group_S * longest + table.step_index_S, return_inverse=True)
    # A member that branches may reach a step several times: it counts once, with its mean.
    own = group_statistics(returns_to_go_S, cell_S * table.num_trajectories + table.trajectory_S)
    zeros_S = torch.zeros_like(returns_to_go_S)
    others_S = zeros_S.index_add(0, cell_S, 1 / own.size_R)[cell_S].round() - 1
    total_S = zeros_S.index_add(0, cell_S, own.mean_R / own.size_R)[cell_S]
    baseline_S = torch.where(others_S > 0, (total_S - own.mean_R) / others_S.clamp(min=1), zeros_S)
    # A single trajectory is compared with 0. A group has credit when its members differ in their returns, or in their
    # returns-to-go at some step.
    alone_R = group_statistics(table.returns_R, table.group_R).size_R < 2
    task_returns_to_go_S = table.task_rewards_to_go_S(gamma)
    differs_S = group_statistics(task_returns_to_go_S, cell_S).has_spread_R
    some_differ_S = group_statistics(differs_S.double(), group_S).mean_R > 0
    alive_S = (has_spread(table) | alone_R)[table.trajectory_S] | some_differ_S
    return Credit.of_steps(table, returns_to_go_S - baseline_S, alive_S)
