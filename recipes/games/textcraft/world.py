"""The crafting world: recipes, which items lie about, and how deep the recipe tree of each item is.

Some recipes of the game lead in circles: nine ingots make a block, a block makes nine ingots. Here an item has a depth:
0 when it can be taken, otherwise 1 more than that of the deepest item its recipe needs. Only recipes of the least depth
are kept, so a recipe's ingredients are always less deep than what it makes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from agent_r1.errors import DataError

from .kinds import name_of


@dataclass(frozen=True, slots=True)
class Ingredient:
    """So many of one item, or of any items of a kind."""

    count: int
    options: tuple[str, ...]
    """The items that will do, in a fixed order."""

    @property
    def name(self) -> str:
        """The item, or the kind."""
        return name_of(self.options)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What makes `count` of an item."""

    item: str
    count: int
    ingredients: tuple[Ingredient, ...]

    def __str__(self) -> str:
        used = ", ".join(f"{part.count} {part.name}" for part in self.ingredients)
        return f"craft {self.count} {self.item} using {used}"

    def to_json(self) -> dict[str, Any]:
        """A row of a packed file."""
        uses = [[part.count, *part.options] for part in self.ingredients]
        return {"item": self.item, "count": self.count, "uses": uses}

    @classmethod
    def from_json(cls, row: Any) -> Recipe:
        """The recipe of a packed row; `DataError` when it is none."""
        try:
            item, count = row["item"], row["count"]
            parts = tuple(Ingredient(int(number), tuple(map(_text, options))) for number, *options in row["uses"])
            if not parts or min(int(count), *(part.count for part in parts)) < 1 or not all(p.options for p in parts):
                raise ValueError("counts and ingredients are at least 1")
            return cls(_text(item), int(count), parts)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                "a recipe is an object with item, count and uses, which are lists [count, item, ...]; found "
                f"{row!r:.120} ({error})"
            ) from None


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("an item is a text")
    return value


class World:
    """Recipes without circles. The same recipes in any order give the same world."""

    def __init__(self, recipes: Iterable[Recipe]) -> None:
        self._all = sorted(set(recipes), key=lambda recipe: (recipe.item, str(recipe)))
        if not self._all:
            raise DataError("a crafting world needs recipes; found none")
        self.depth = _depths(self._all)
        kept: dict[str, list[Recipe]] = {}
        for recipe in self._all:
            if self.depth[recipe.item] and _recipe_depth(recipe, self.depth) == self.depth[recipe.item]:
                kept.setdefault(recipe.item, []).append(recipe)
        self.recipes: Mapping[str, Sequence[Recipe]] = kept

    @cached_property
    def craftable(self) -> tuple[str, ...]:
        """Everything that must be crafted, by name."""
        return tuple(sorted(self.recipes))

    @cached_property
    def users(self) -> Mapping[str, Sequence[str]]:
        """For the name of each ingredient, the items whose first recipe uses it."""
        users: dict[str, list[str]] = {}
        for item, (recipe, *_) in self.recipes.items():
            for name in dict.fromkeys(part.name for part in recipe.ingredients):
                users.setdefault(name, []).append(item)
        return users

    def is_found(self, item: str) -> bool:
        """Whether `get` finds an item: those that nothing needs to be crafted for."""
        return self.depth.get(item) == 0

    def shallow(self, ingredient: Ingredient) -> tuple[str, ...]:
        """The items of the least depth that will do, so that a recipe never leads back to what it makes."""
        least = min(self.depth[option] for option in ingredient.options)
        return tuple(option for option in ingredient.options if self.depth[option] == least)


def _depths(recipes: Sequence[Recipe]) -> dict[str, int]:
    """The depth of every item. Where items can only be made of each other, the one that most recipes use is found."""
    made = {recipe.item for recipe in recipes}
    used = Counter(option for recipe in recipes for part in recipe.ingredients for option in part.options)
    depth = dict.fromkeys(set(used) - made, 0)
    while True:
        _settle(recipes, depth)
        left = sorted(made - depth.keys(), key=lambda item: (-used[item], item))
        if not left:
            return depth
        depth[left[0]] = 0


def _settle(recipes: Sequence[Recipe], depth: dict[str, int]) -> None:
    """Lower depths until none changes. An item that is found stays at 0."""
    changed = True
    while changed:
        changed = False
        for recipe in recipes:
            reached = _recipe_depth(recipe, depth)
            if reached is not None and reached < depth.get(recipe.item, reached + 1):
                depth[recipe.item] = reached
                changed = True


def _recipe_depth(recipe: Recipe, depth: Mapping[str, int]) -> int | None:
    """1 more than the deepest ingredient; None when one cannot be had."""
    deepest = 0
    for part in recipe.ingredients:
        known = [depth[option] for option in part.options if option in depth]
        if not known:
            return None
        deepest = max(deepest, min(known))
    return deepest + 1
