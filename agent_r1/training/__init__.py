"""Training: the plan of a run, its preparation, its components, the training loop, checkpoints, whole runs.

Names are loaded on first use: a plan and a dry run need no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_r1.training.checkpoints.files import load_checkpoint
    from agent_r1.training.components import RunComponents, load_components, make_rollout
    from agent_r1.training.demonstrations import SampledDemonstrations, Sampling, demonstrate_run
    from agent_r1.training.model_check import (
        CheckedModel,
        check_model,
        check_model_exists,
        context_length_of,
        renderer_of,
    )
    from agent_r1.training.plan import (
        RunPlan,
        check_config,
        distinct_setups,
        first_observation,
        make_plan,
        tool_policies,
        tools_in_use,
    )
    from agent_r1.training.prepare import dry_run, ensure_model, prepare_model, prepare_plan
    from agent_r1.training.reporting.summary import Summary
    from agent_r1.training.run import eval_run, eval_trained, sft_run, train_run
    from agent_r1.training.tag_rows import describe_shared, shared_rows

_HOMES = {
    "checkpoints.files": ("load_checkpoint",),
    "components": ("RunComponents", "load_components", "make_rollout"),
    "demonstrations": ("SampledDemonstrations", "Sampling", "demonstrate_run"),
    "model_check": ("CheckedModel", "check_model", "check_model_exists", "context_length_of", "renderer_of"),
    "plan": (
        "RunPlan",
        "check_config",
        "distinct_setups",
        "first_observation",
        "make_plan",
        "tool_policies",
        "tools_in_use",
    ),
    "prepare": ("dry_run", "ensure_model", "prepare_model", "prepare_plan"),
    "run": ("eval_run", "eval_trained", "sft_run", "train_run"),
    "reporting.summary": ("Summary",),
    "tag_rows": ("describe_shared", "shared_rows"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "CheckedModel",
    "RunComponents",
    "RunPlan",
    "SampledDemonstrations",
    "Sampling",
    "Summary",
    "check_config",
    "check_model",
    "check_model_exists",
    "context_length_of",
    "demonstrate_run",
    "describe_shared",
    "distinct_setups",
    "dry_run",
    "ensure_model",
    "eval_run",
    "eval_trained",
    "first_observation",
    "load_checkpoint",
    "load_components",
    "make_plan",
    "make_rollout",
    "prepare_model",
    "prepare_plan",
    "renderer_of",
    "sft_run",
    "shared_rows",
    "tool_policies",
    "tools_in_use",
    "train_run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'agent_r1.training' has no attribute '{name}'")
    return getattr(importlib.import_module(f"agent_r1.training.{_HOME_OF[name]}"), name)
