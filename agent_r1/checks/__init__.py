"""`agent-r1 check`: finds what would go wrong in a recipe before any training."""

from agent_r1.checks.report import Report, Result
from agent_r1.checks.run import check_recipe

__all__ = ["Report", "Result", "check_recipe"]
