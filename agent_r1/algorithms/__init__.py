"""Algorithms: advantage estimators, policy losses, KL, aggregations, off-policy corrections.

Pure functions over flat arrays, each found by name in a registry. A preset (`config/algorithm/<name>.yaml`) bundles
them.
"""

from agent_r1.algorithms.aggregation import Aggregation, aggregations
from agent_r1.algorithms.algorithm import Algorithm, bind_algorithm, discount
from agent_r1.algorithms.estimators import Credit, Estimator, estimators, group_statistics, whiten
from agent_r1.algorithms.kl import KLEstimator, adapted_coefficient, kl_estimators
from agent_r1.algorithms.losses import LossInputs, PolicyLoss, TokenLosses, policy_losses, value_loss
from agent_r1.algorithms.off_policy import Correction, corrections, engine_divergence
from agent_r1.algorithms.ridge import LinearHead, RidgeValues
from agent_r1.algorithms.scan import reverse_scan
from agent_r1.algorithms.table import StepTable

__all__ = [
    "Aggregation",
    "Algorithm",
    "Correction",
    "Credit",
    "Estimator",
    "KLEstimator",
    "LinearHead",
    "LossInputs",
    "PolicyLoss",
    "RidgeValues",
    "StepTable",
    "TokenLosses",
    "adapted_coefficient",
    "aggregations",
    "bind_algorithm",
    "corrections",
    "discount",
    "engine_divergence",
    "estimators",
    "group_statistics",
    "kl_estimators",
    "policy_losses",
    "reverse_scan",
    "value_loss",
    "whiten",
]
