"""The data of games: TextCraft's recipes, goals as parquet files, demonstrations for the warm start.

    python recipes/games/data_preprocess/process_games.py --local_save_dir runs/games_data

`agent-r1 train` calls `make_data` when a file that `base.yaml` names is missing. Overrides such as
`env.context=compact` may follow.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_r1.cli.errors import script_errors
from agent_r1.config import Config, load_config
from agent_r1.data import task_from_row, write_rows
from agent_r1.errors import DataError
from agent_r1.registry import load_module, recipe_folder
from agent_r1.types import Action

RECIPE = Path(__file__).resolve().parents[1]

# A plain import would not find them when this file is run as a script.
with recipe_folder(RECIPE):
    environment = load_module("env")
    goals = load_module("textcraft.goals")
    prompts = load_module("prompts")
    sources = load_module("data_preprocess.sources")
    worlds = load_module("textcraft.world")

PER_ITEM = {"train": 6, "validation": 2, "test": 2}
"""Goals per item of each split."""
DEMONSTRATED_DEPTH = 2
"""Deeper goals are not demonstrated: training has to find out that plans can be put together."""
DEMONSTRATIONS_PER_ITEM = 2


def task_row(world: Any, goal: Any) -> dict[str, Any]:
    """A goal as a dataset row. Figures are given per depth, and the curriculum climbs `difficulty`."""
    text = f"craft {goal.amount}"
    return {
        "task_id": f"textcraft-{goal.goal_id}",
        "data_source": f"textcraft_depth{goal.difficulty}",
        "prompt": prompts.goal_messages(text, goal.shown, goals.kinds_shown(world, goal)),
        "agent_name": "env_loop",
        "env_kwargs": {"goal": goal.to_json()},
        "difficulty": goal.difficulty,
        "extra_info": {"plan_length": len(goal.solution)},
    }


async def demonstration(arguments: Mapping[str, Any], world: Any, goal: Any) -> list[list[Any]] | None:
    """The conversations of a goal's solution, run in the environment; None when it does not reach the goal. There is
    one where the context keeps the whole history, and one per step where it rewrites it."""
    env = environment.TextCraftEnv(**arguments)
    row = task_row(world, goal)
    observation = await env.reset(task_from_row(row, row["task_id"]))
    shown: list[list[Any]] = []
    for command in goal.solution:
        text = str(command)
        turn = [*observation.messages, {"role": "assistant", "content": text}]
        if shown and turn[: len(shown[-1])] == shown[-1]:
            shown.pop()
        shown.append(turn)
        result = await env.step(Action(text=text, content=text))
        if result.done:
            return shown if command == goal.solution[-1] else None
        observation = result.observation
    return None


async def demonstrations(arguments: Mapping[str, Any], world: Any, tried: Iterable[Any]) -> list[list[Any]]:
    """The conversations of the goals that their solutions reach."""
    return [row for goal in tried for row in await demonstration(arguments, world, goal) or ()]


def demonstrated(some: Iterable[Any]) -> list[Any]:
    """The goals to demonstrate: a few of each item, none of them deep."""
    counts: Counter[str] = Counter()
    chosen = []
    for goal in some:
        counts[goal.amount.item] += 1
        if goal.difficulty <= DEMONSTRATED_DEPTH and counts[goal.amount.item] <= DEMONSTRATIONS_PER_ITEM:
            chosen.append(goal)
    return chosen


def write_data(folder: Path, config: Config, dataset: Path | None = None) -> None:
    """Write `recipes.jsonl`, `demonstrations.jsonl` and one file per split."""
    recipes = sources.world_recipes(dataset)
    world = worlds.World(recipes)
    splits = {
        split: list(goals.make_goals(world, items, PER_ITEM[split]))
        for split, items in goals.split_items(world).items()
    }
    empty = [split for split, made in splits.items() if not made]
    if empty:
        raise DataError(f"{len(world.craftable)} items that can be crafted are too few: no goal is left for {empty[0]}")
    write_rows(folder / environment.RECIPES_FILE, (recipe.to_json() for recipe in recipes))
    arguments = {"world": str(folder), **{key: config.env[key] for key in ("context",) if key in config.env}}
    environment.open_world.cache_clear()
    tried = demonstrated(splits["train"])
    shown = asyncio.run(demonstrations(arguments, world, tried))
    write_rows(folder / "demonstrations.jsonl", ({"messages": row} for row in shown))
    for split in ("test", "validation", "train"):
        write_rows(folder / f"{split}.parquet", (task_row(world, goal) for goal in splits[split]))
    print(describe(world, splits, len(tried)))


def describe(world: Any, splits: Mapping[str, Sequence[Any]], num_demonstrated: int) -> str:
    """What was made."""
    depths = Counter(world.depth[item] for item in world.craftable)
    items = ", ".join(f"{count} of depth {depth}" for depth, count in sorted(depths.items()))
    sizes = ", ".join(f"{name} {len(made)}" for name, made in splits.items())
    return f"{len(world.craftable)} items to craft: {items}. Goals: {sizes}. {num_demonstrated} are demonstrated"


def make_data(config: Config) -> None:
    """The `data.prepare` of `base.yaml`: makes what is missing."""
    named = map(Path, (*config.data.train, *config.data.eval, *config.data.test, *config.sft.data))
    if not all(path.is_file() for path in named):
        write_data(Path(config.data.train[0]).parent, config)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local_save_dir", type=Path, required=True, help="where the files go")
    parser.add_argument("--local_dataset_path", type=Path, help="take the recipes from this folder")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="changes to base.yaml")
    chosen = parser.parse_args(arguments)
    with recipe_folder(RECIPE):
        write_data(chosen.local_save_dir, load_config(RECIPE, chosen.overrides), chosen.local_dataset_path)


if __name__ == "__main__":
    with script_errors():
        main()
