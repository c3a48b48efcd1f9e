"""Goals: what to craft, which recipes are shown, and how difficult it is.

A goal's difficulty is the depth of its recipe tree. The shown recipes are those of the tree among others that share
ingredients with it. Splits are by item: an item that is a goal of one split is a goal in no other.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agent_r1.errors import DataError

from .commands import MAX_COUNT, Amount, Command
from .expert import Choice, plan
from .world import Recipe, World

SHARES = {"test": 20, "validation": 10}
"""Percent of the goal items of each depth; the others are to train on."""
NUM_OTHERS = 5
"""Recipes that are shown and not needed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """One task."""

    goal_id: str
    amount: Amount
    difficulty: int
    """The depth of the item's recipe tree."""
    shown: tuple[Recipe, ...]
    """The recipes in the prompt, in their order."""
    solution: tuple[Command, ...]
    """A shortest plan."""

    def to_json(self) -> dict[str, Any]:
        """What the environment needs."""
        return {"item": self.amount.item, "count": self.amount.count}


def goal_amount(row: Any) -> Amount:
    """The goal in a row's `env_kwargs`; `DataError` when there is none."""
    match row:
        case {"item": str(item), "count": int(count)} if item and 1 <= count <= MAX_COUNT and count is not True:
            return Amount(count, item)
    raise DataError(f"a row of textcraft needs env_kwargs.goal with an item and a count from 1; found {row!r:.120}")


def choose(world: World, item: str, rng: random.Random) -> Choice:
    """A recipe for an item and for everything that it needs; of a kind, one item, the same wherever the kind is."""
    choice: Choice = {}
    taken: dict[str, str] = {}

    def visit(current: str) -> None:
        if current in choice or world.is_found(current):
            return
        recipe = rng.choice(world.recipes[current])
        parts = []
        for ingredient in recipe.ingredients:
            part = taken.setdefault(ingredient.name, rng.choice(world.shallow(ingredient)))
            parts.append(part)
        choice[current] = recipe, tuple(parts)
        for part in parts:
            visit(part)

    visit(item)
    return choice


def make_goal(world: World, item: str, number: int, *, num_others: int = NUM_OTHERS) -> Goal:
    """Goal `number` of an item: the choice of recipes, the count and the other recipes are a function of both."""
    rng = random.Random(f"textcraft {item} {number}")
    choice = choose(world, item, rng)
    recipe = choice[item][0]
    amount = Amount(recipe.count * rng.choice((1, 1, 2)) if number else recipe.count, item)
    needed = [entry[0] for entry in choice.values()]
    shown = [*needed, *_others(world, needed, rng, num_others)]
    rng.shuffle(shown)
    return Goal(
        goal_id=f"{item.replace(' ', '_')}-{number}",
        amount=amount,
        difficulty=world.depth[item],
        shown=tuple(shown),
        solution=tuple(plan(choice, amount)),
    )


def _others(world: World, needed: Sequence[Recipe], rng: random.Random, count: int) -> list[Recipe]:
    """Recipes of other items that share an ingredient with the needed ones, and any others when these are too few."""
    made = {recipe.item for recipe in needed}
    used = made.union(part.name for recipe in needed for part in recipe.ingredients)
    close = sorted({item for name in used for item in world.users.get(name, ())} - made)
    chosen = rng.sample(close, min(count, len(close)))
    if len(chosen) < count:
        far = sorted(set(world.craftable) - made - set(chosen))
        chosen += rng.sample(far, min(count - len(chosen), len(far)))
    return [world.recipes[item][0] for item in chosen]


def split_items(world: World) -> dict[str, list[str]]:
    """The goal items of each split: a share of every depth, chosen by the hash of their names, so that a world with
    more items keeps the order of the others. A depth with a single item is to train on."""
    splits: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    for depth in sorted({world.depth[item] for item in world.craftable}):
        items = [item for item in world.craftable if world.depth[item] == depth]
        items.sort(key=lambda item: hashlib.sha256(item.encode()).digest())
        sizes = {name: -(-len(items) * share // 100) if len(items) > 2 else 0 for name, share in SHARES.items()}
        for name, size in sizes.items():
            splits[name] += items[:size]
            items = items[size:]
        splits["train"] += items
    return splits


def make_goals(world: World, items: Iterable[str], per_item: int, *, num_others: int = NUM_OTHERS) -> Iterator[Goal]:
    """`per_item` goals of each item; those that repeat an earlier one word for word are left out."""
    for item in items:
        seen: set[tuple[Any, ...]] = set()
        for number in range(per_item):
            goal = make_goal(world, item, number, num_others=num_others)
            key = (goal.amount, frozenset(goal.shown))
            if key not in seen:
                seen.add(key)
                yield goal


def kinds_shown(world: World, goal: Goal) -> dict[str, str]:
    """For each kind in the shown recipes, an item of it: the one that the solution takes where there is one."""
    used = {amount.item for command in goal.solution for amount in command.using}
    kinds: dict[str, str] = {}
    for recipe in goal.shown:
        for part in recipe.ingredients:
            if len(part.options) > 1 and part.name not in kinds:
                ours = [option for option in part.options if option in used]
                kinds[part.name] = (ours or list(world.shallow(part)))[0]
    return kinds
