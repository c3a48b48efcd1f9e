"""Evaluating a policy, numbers about rollouts, and a monitor that says when learning goes wrong."""

from agent_r1.evaluation.evaluate import Evaluation, choose_panel, evaluate
from agent_r1.evaluation.health import HealthMonitor
from agent_r1.evaluation.metrics import rollout_metrics

__all__ = [
    "Evaluation",
    "HealthMonitor",
    "choose_panel",
    "evaluate",
    "rollout_metrics",
]
