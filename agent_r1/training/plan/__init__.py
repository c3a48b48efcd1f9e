"""The plan of a run: configuration, names, data and prompt lengths, checked before a model is loaded.

Nothing here writes files or loads weights. All problems are reported together.
"""

from agent_r1.training.plan.configuration import check_config, check_trainable, missing_data
from agent_r1.training.plan.plan import RunPlan, check_learns, first_observation, make_plan
from agent_r1.training.plan.tools import distinct_setups, tool_policies, tools_in_use

__all__ = [
    "RunPlan",
    "check_config",
    "check_learns",
    "check_trainable",
    "distinct_setups",
    "first_observation",
    "make_plan",
    "missing_data",
    "tool_policies",
    "tools_in_use",
]
