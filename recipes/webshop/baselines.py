"""Scripted customers, played in the environment: what a score means.

    python recipes/webshop/baselines.py runs/webshop_data --split test

| name | what it does |
|---|---|
| random | clicks buttons at random; searches for the instruction first |
| first_hit | searches for the instruction, buys the first product |
| with_options | the same, and chooses the options that the instruction names, where the product has them |
| first_offering | buys the first product of the page that offers all of these, else the first one |
| gold | knows the product that the goal was made of: the most that can be reached |
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from agent_r1.console import progress_counter
from agent_r1.data import load_tasks
from agent_r1.registry import load_module, recipe_folder
from agent_r1.types import Task

RECIPE = Path(__file__).resolve().parent

# A plain import would not find them when this file is run as a script.
with recipe_folder(RECIPE):
    expert = load_module("expert")
    goals = load_module("goals")
    pages = load_module("pages")
    shops = load_module("shop")
    environment = load_module("env")

MAX_STEPS = 12

Customer = Callable[[Any, Any, random.Random], "list[str] | None"]
"""From a shop, a goal and random numbers to actions; None when there is no plan."""


def first_hit(shop: Any, goal: Any, rng: random.Random) -> list[str]:
    """Buy what is found first."""
    return _purchase(goal.text, shop.search(goal.text)[0], [])


def with_options(shop: Any, goal: Any, rng: random.Random) -> list[str]:
    """Buy what is found first, with the options that the instruction names."""
    asin = shop.search(goal.text)[0]
    return _purchase(goal.text, asin, named_values(goal.text, shop.product(asin)))


def first_offering(shop: Any, goal: Any, rng: random.Random) -> list[str]:
    """Buy the first product that offers as many of the named options as there are."""
    shown = shop.search(goal.text)[: shops.PER_PAGE]
    values = {asin: named_values(goal.text, shop.product(asin)) for asin in shown}
    best = max(shown, key=lambda asin: min(len(values[asin]), len(goal.options)))  # the first of the best
    return _purchase(goal.text, best, values[best])


def random_clicks(shop: Any, goal: Any, rng: random.Random) -> list[str]:
    """Click at random until something is bought."""
    actions = [f"search[{goal.text}]"]
    page = pages.search(goal.text)
    while not page.bought and len(actions) < MAX_STEPS:
        names = pages.buttons(shop, page)
        if not names:
            actions.append(f"search[{goal.text}]")
            page = pages.search(goal.text)
            continue
        button = rng.choice(names)
        actions.append(f"click[{button}]")
        page = pages.follow(shop, page, button)
    return actions


def gold(shop: Any, goal: Any, rng: random.Random) -> list[str] | None:
    """Buy the goal's product."""
    plan: list[str] | None = expert.gold_plan(shop, goal)
    return plan


CUSTOMERS: dict[str, Customer] = {
    "random": random_clicks,
    "first_hit": first_hit,
    "with_options": with_options,
    "first_offering": first_offering,
    "gold": gold,
}


def named_values(text: str, product: Any) -> list[str]:
    """The value of each option that an instruction names: `color: navy` of the option color."""
    named = {}
    for name, values in product.options.items():
        found = [value for value in values if f"{name}: {value}," in f"{text},"]
        if found:
            named[name] = max(found, key=len)
    return list(named.values())


def _purchase(query: str, asin: str, values: Iterable[str]) -> list[str]:
    return [f"search[{query}]", *(f"click[{button}]" for button in (asin.lower(), *values, pages.BUY))]


async def play_all(shop: str, tasks: Sequence[Task], customer: Customer) -> list[float]:
    """The score of each task."""
    scores = []
    for task in tasks:
        goal = goals.Goal.from_json(task.env_kwargs.get("goal"))
        actions = customer(shops.open_shop(shop), goal, random.Random(goal.goal_id))
        score = 0.0
        if actions is not None:
            score, _ = await expert.play(environment.ShopEnv(shop=shop), task, actions)
        scores.append(score)
    return scores


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what process_webshop.py wrote")
    parser.add_argument("--split", default="test", choices=["train", "validation", "test"])
    parser.add_argument("--only", nargs="+", default=list(CUSTOMERS), choices=list(CUSTOMERS))
    chosen = parser.parse_args(arguments)
    tasks = load_tasks([chosen.folder / f"{chosen.split}.parquet"])
    print(f"{len(tasks)} goals of {chosen.split}: score and success in percent")
    with progress_counter("customers") as progress:
        for number, name in enumerate(chosen.only):
            progress(name, number)
            scores = asyncio.run(play_all(str(chosen.folder), tasks, CUSTOMERS[name]))
            print(f"{name:16}{100 * fmean(scores):7.1f}{100 * fmean(score >= 1.0 for score in scores):7.1f}")


if __name__ == "__main__":
    main()
