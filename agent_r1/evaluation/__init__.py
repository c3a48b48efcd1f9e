"""Evaluating a policy, metrics of rollouts, and a monitor that warns when learning goes wrong."""

from agent_r1.evaluation.evaluate import Evaluation, evaluate, sample_eval_tasks
from agent_r1.evaluation.health import HealthMonitor, HealthWarning
from agent_r1.evaluation.metrics import rollout_metrics

__all__ = [
    "Evaluation",
    "HealthMonitor",
    "HealthWarning",
    "evaluate",
    "rollout_metrics",
    "sample_eval_tasks",
]
