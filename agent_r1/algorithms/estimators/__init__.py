"""Advantage estimators: from a `StepTable` to `Credit`. Pure functions, found by name in `estimators`.

To add one, register a function and name it in the configuration (`algorithm.estimator.name=mine`):

    @estimators.register("mine")
    def mine(table: StepTable, *, scale: float = 1.0) -> Credit: ...

Its keyword arguments are the keys of `algorithm.estimator`. With a `values_N` that is None there is no critic.
"""

from agent_r1.algorithms.estimators.anchors import anchor_clusters, gigpo
from agent_r1.algorithms.estimators.base import (
    Credit,
    Estimator,
    GroupStatistics,
    estimators,
    group_statistics,
    whiten,
)
from agent_r1.algorithms.estimators.gae import step_gae, token_gae
from agent_r1.algorithms.estimators.groups import group, group_whitened, leave_one_out, step_group
from agent_r1.algorithms.estimators.returns import greedy_baseline, return_to_go, token_return

__all__ = [
    "Credit",
    "Estimator",
    "GroupStatistics",
    "anchor_clusters",
    "estimators",
    "gigpo",
    "greedy_baseline",
    "group",
    "group_statistics",
    "group_whitened",
    "leave_one_out",
    "return_to_go",
    "step_gae",
    "step_group",
    "token_gae",
    "token_return",
    "whiten",
]
