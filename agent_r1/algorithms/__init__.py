"""Algorithms: advantage estimators, policy losses, KL, aggregations. Pure functions over flat arrays."""

from agent_r1.algorithms.aggregation import Aggregation, aggregations
from agent_r1.algorithms.estimators import Credit, Estimator, estimators, whiten
from agent_r1.algorithms.kl import KLEstimator, kl_estimators
from agent_r1.algorithms.losses import LossInputs, PolicyLoss, TokenLosses, policy_losses, value_loss
from agent_r1.algorithms.scan import reverse_scan
from agent_r1.algorithms.table import StepTable

__all__ = [
    "Aggregation",
    "Credit",
    "Estimator",
    "KLEstimator",
    "LossInputs",
    "PolicyLoss",
    "StepTable",
    "TokenLosses",
    "aggregations",
    "estimators",
    "kl_estimators",
    "policy_losses",
    "reverse_scan",
    "value_loss",
    "whiten",
]
