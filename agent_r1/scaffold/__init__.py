"""Recipe folders to start from."""

from agent_r1.scaffold.copy import copy_recipe
from agent_r1.scaffold.recipe import Kind, write_recipe

__all__ = ["Kind", "copy_recipe", "write_recipe"]
