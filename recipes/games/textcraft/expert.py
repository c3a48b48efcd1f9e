"""An expert that plans by recursion: to craft something, first have everything that its recipe needs."""

from __future__ import annotations

from collections import Counter

from .commands import Amount, Command
from .world import Recipe

Choice = dict[str, tuple[Recipe, tuple[str, ...]]]
"""For each item to craft: its recipe, and the item that is taken for each of its ingredients."""


def needed_items(choice: Choice, item: str) -> list[str]:
    """Everything that an item is made of and the item itself, ingredients always before what they make."""
    order: dict[str, None] = {}

    def visit(current: str) -> None:
        if current in order:
            return
        for part in choice[current][1] if current in choice else ():
            visit(part)
        order[current] = None

    visit(item)
    return list(order)


def plan(choice: Choice, goal: Amount) -> list[Command]:
    """The shortest plan for these recipes: each item is taken once, or crafted once for all that need it.

    The demand of an item is known when everything that it goes into is settled, hence from the goal down.
    """
    order = needed_items(choice, goal.item)
    demand: Counter[str] = Counter({goal.item: goal.count})
    commands: list[Command] = []
    for item in reversed(order):
        if item not in choice:
            commands.append(Command("get", Amount(demand[item], item)))
            continue
        recipe, parts = choice[item]
        times = -(-demand[item] // recipe.count)
        using: Counter[str] = Counter()
        for ingredient, taken in zip(recipe.ingredients, parts, strict=True):
            using[taken] += ingredient.count * times
            demand[taken] += ingredient.count * times
        amounts = tuple(Amount(count, taken) for taken, count in using.items())
        commands.append(Command("craft", Amount(recipe.count * times, item), amounts))
    return commands[::-1]
