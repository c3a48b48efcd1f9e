"""The state of one game: what is held, and what a command does to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from .commands import Amount, Command
from .world import Ingredient, Recipe, World

MAX_HELD = 9999


class Game:
    """A player who holds nothing yet. A command either succeeds as a whole or changes nothing."""

    def __init__(self, world: World, goal: Amount) -> None:
        self._world = world
        self.goal = goal
        self.held: Counter[str] = Counter()

    @property
    def is_won(self) -> bool:
        """Whether the goal is held. Only crafting brings it: a goal is never an item that `get` finds."""
        return self.held[self.goal.item] >= self.goal.count

    @property
    def inventory(self) -> str:
        """What is held, as the model reads it."""
        held = [f"{count} {item}" for item, count in sorted(self.held.items()) if count]
        return f"Inventory: {', '.join(held) or 'empty'}."

    def run(self, command: Command) -> tuple[str, bool]:
        """The reply, and whether the command succeeded."""
        if command.verb == "inventory":
            return self.inventory, True
        assert command.amount is not None
        problem = self._get(command.amount) if command.verb == "get" else self._craft(command)
        if problem is not None:
            return f"Error: {problem}", False
        return f"{'Got' if command.verb == 'get' else 'Crafted'} {command.amount}.", True

    def _get(self, amount: Amount) -> str | None:
        if amount.item in self._world.recipes:
            return f"{amount.item} cannot be found, it must be crafted."
        if not self._world.is_found(amount.item):
            return f"there is no item {amount.item:.60}."
        return self._hold(amount, Counter())

    def _hold(self, amount: Amount, used: Counter[str]) -> str | None:
        if self.held[amount.item] + amount.count > MAX_HELD:
            return f"more than {MAX_HELD} {amount.item} cannot be held."
        self.held.subtract(used)
        self.held[amount.item] += amount.count
        return None

    def _craft(self, command: Command) -> str | None:
        made = command.amount
        assert made is not None
        recipes = self._world.recipes.get(made.item)
        if recipes is None:
            return f"there is no recipe for {made.item:.60}."
        fitting = [recipe for recipe in recipes if _fits(recipe, command)]
        if not fitting:
            return f"this is not the recipe: {recipes[0]}."
        needed = _total(command.using)
        missing = [f"{count} {item}" for item, count in needed.items() if self.held[item] < count]
        if missing:
            return f"{', '.join(missing)} needed. {self.inventory}"
        return self._hold(made, needed)


def _total(amounts: tuple[Amount, ...]) -> Counter[str]:
    total: Counter[str] = Counter()
    for amount in amounts:
        total[amount.item] += amount.count
    return total


def _fits(recipe: Recipe, command: Command) -> bool:
    """Whether the command is the recipe, once or several times over."""
    assert command.amount is not None
    times, rest = divmod(command.amount.count, recipe.count)
    return not rest and _covers(recipe.ingredients, _total(command.using), times)


def _covers(ingredients: tuple[Ingredient, ...], used: Mapping[str, int], times: int) -> bool:
    """Whether the items are exactly the ingredients, `times` over. Those with fewest options choose first."""
    left = Counter(used)
    for part in sorted(ingredients, key=lambda part: len(part.options)):
        wanted = part.count * times
        for option in part.options:
            taken = min(wanted, left[option])
            wanted -= taken
            left[option] -= taken
        if wanted:
            return False
    return not any(left.values())
