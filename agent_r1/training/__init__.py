"""Training: rows, scoring, learner, trainer loop, checkpoints, whole runs."""

from agent_r1.training.plan import (
    RunPlan,
    check_model,
    context_length,
    distinct_setups,
    first_observation,
    make_plan,
    prepare_model,
    tool_policies,
    tools_in_use,
)
from agent_r1.training.run import (
    RunComponents,
    closing_engine,
    ensure_model,
    eval_run,
    load_parts,
    make_rollout,
    train_run,
)
from agent_r1.training.sft import sft_run
from agent_r1.training.trainer import Summary

__all__ = [
    "RunComponents",
    "RunPlan",
    "Summary",
    "check_model",
    "closing_engine",
    "context_length",
    "distinct_setups",
    "ensure_model",
    "eval_run",
    "first_observation",
    "load_parts",
    "make_plan",
    "make_rollout",
    "prepare_model",
    "sft_run",
    "tool_policies",
    "tools_in_use",
    "train_run",
]
