"""`agent-r1 check`: what will go wrong in a recipe, said before any training."""

from agent_r1.checks.report import Report, Result
from agent_r1.checks.run import check_recipe

__all__ = ["Report", "Result", "check_recipe"]
