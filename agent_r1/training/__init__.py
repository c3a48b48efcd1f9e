"""Training: rows, scoring, learner, trainer loop, checkpoints, whole runs."""

from agent_r1.training.plan import (
    Plan,
    check_model,
    context_length,
    first_observation,
    make_plan,
    one_per_use,
    prepare_model,
    tool_policies,
    tools_in_use,
)
from agent_r1.training.run import Parts, closing_engine, eval_run, load_parts, model_made, tools_at_hand, train_run
from agent_r1.training.sft import sft_run
from agent_r1.training.trainer import Summary

__all__ = [
    "Parts",
    "Plan",
    "Summary",
    "check_model",
    "closing_engine",
    "context_length",
    "eval_run",
    "first_observation",
    "load_parts",
    "make_plan",
    "model_made",
    "one_per_use",
    "prepare_model",
    "sft_run",
    "tool_policies",
    "tools_at_hand",
    "tools_in_use",
    "train_run",
]
