"""Recipe folders to start from."""

from agent_r1.scaffold.recipe import Kind, write_recipe

__all__ = ["Kind", "write_recipe"]
