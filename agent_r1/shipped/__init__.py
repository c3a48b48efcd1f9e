"""The recipes that come with Agent-R1, and recipes by name."""

from agent_r1.shipped.lookup import ShippedRecipe, find_recipe, recipe_note, shipped_recipes

__all__ = ["ShippedRecipe", "find_recipe", "recipe_note", "shipped_recipes"]
