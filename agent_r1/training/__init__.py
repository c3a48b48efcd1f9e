"""Training: the plan of a run, its preparation, its components, the training loop, checkpoints, whole runs."""

from agent_r1.training.checkpoints.files import load_checkpoint
from agent_r1.training.components import RunComponents, load_components, make_rollout
from agent_r1.training.model_check import CheckedModel, check_model, check_model_exists, context_length_of
from agent_r1.training.plan import (
    RunPlan,
    check_config,
    distinct_setups,
    first_observation,
    make_plan,
    tool_policies,
    tools_in_use,
)
from agent_r1.training.prepare import ensure_model, prepare_model, prepare_plan
from agent_r1.training.run import dry_run, eval_run, sft_run, train_run
from agent_r1.training.summary import Summary

__all__ = [
    "CheckedModel",
    "RunComponents",
    "RunPlan",
    "Summary",
    "check_config",
    "check_model",
    "check_model_exists",
    "context_length_of",
    "distinct_setups",
    "dry_run",
    "ensure_model",
    "eval_run",
    "first_observation",
    "load_checkpoint",
    "load_components",
    "make_plan",
    "make_rollout",
    "prepare_model",
    "prepare_plan",
    "sft_run",
    "tool_policies",
    "tools_in_use",
    "train_run",
]
