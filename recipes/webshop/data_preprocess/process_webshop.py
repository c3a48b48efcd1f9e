"""The data of webshop: the shop (products and index), goals as parquet files, demonstrations for the warm start.

    python recipes/webshop/data_preprocess/process_webshop.py --local_save_dir runs/webshop_data

`agent-r1 train` calls `make_data` when a file that `base.yaml` names is missing. Demonstrations show pages as the
environment of `base.yaml` shows them; overrides such as `env.context=shop_page` may follow.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from agent_r1.cli.errors import script_errors
from agent_r1.config import Config, load_config
from agent_r1.data import task_from_row, write_rows
from agent_r1.errors import DataError
from agent_r1.registry import load_module, recipe_folder

RECIPE = Path(__file__).resolve().parents[1]

# A plain import would not find them when this file is run as a script.
with recipe_folder(RECIPE):
    expert = load_module("expert")
    goals = load_module("goals")
    products = load_module("products")
    prompts = load_module("prompts")
    shop = load_module("shop")
    sources = load_module("data_preprocess.sources")
    environment = load_module("env")

HUMAN_FILE = "human.parquet"
DEMONSTRATIONS_PER_PRODUCT = 4


def task_row(goal: Any, source: str = "webshop") -> dict[str, Any]:
    """A goal as a dataset row. Only the environment reads what it holds besides the text."""
    return {
        "task_id": f"{source}-{goal.goal_id}",
        "data_source": source,
        "prompt": prompts.goal_messages(goal.text),
        "agent_name": "env_loop",
        "env_kwargs": {"goal": goal.to_json()},
        "extra_info": {"asin": goal.asin, "num_options": len(goal.options)},
    }


def goal_tasks(some: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Goals with their tasks."""
    for goal in some:
        row = task_row(goal)
        yield task_from_row(row, row["task_id"]), goal


def demonstrated(some: Iterable[Any]) -> list[Any]:
    """The goals to demonstrate: a few per product, so that products with many options do not make up most of them."""
    counts: Counter[str] = Counter()
    chosen = []
    for goal in some:
        if counts[goal.asin] < DEMONSTRATIONS_PER_PRODUCT:
            chosen.append(goal)
        counts[goal.asin] += 1
    return chosen


def environment_arguments(config: Config, folder: Path) -> dict[str, Any]:
    """The arguments of the environment, with the shop in `folder`."""
    names = ("context", "title_characters", "text_characters")
    return {"shop": str(folder), **{name: config.env[name] for name in names if name in config.env}}


def write_data(folder: Path, config: Config, dataset: Path | None = None, *, extra: bool = True) -> None:
    """Write the shop, `demonstrations.jsonl` and one file per split."""
    items = [products.Product.from_row(row) for row in sources.product_rows(dataset)]
    splits = goals.split_goals(items, extra=extra)
    shop.write_shop(folder, items)
    arguments = environment_arguments(config, folder)
    tried = demonstrated(splits["train"])
    shown = list(
        asyncio.run(
            expert.demonstrations(
                lambda: environment.ShopEnv(**arguments), shop.open_shop(folder), list(goal_tasks(tried))
            )
        )
    )
    if not shown:
        raise DataError(f"the expert reaches none of {len(tried)} training goals; the products lack what they are for")
    write_rows(folder / "demonstrations.jsonl", ({"messages": row} for _, rows in shown for row in rows))
    for split in ("test", "validation", "train"):
        write_rows(folder / f"{split}.parquet", map(task_row, splits[split]))
    print(describe(items, splits, len(shown), len(tried)))


def describe(items: Sequence[Any], splits: dict[str, list[Any]], num_shown: int, num_tried: int) -> str:
    """What was made."""
    sizes = ", ".join(f"{name} {len(part)} of {len({g.asin for g in part})} products" for name, part in splits.items())
    return (
        f"{len(items)} products. Goals: {sizes}. The expert reaches {num_shown} of the {num_tried} training goals "
        "that it tried"
    )


def write_human(folder: Path, dataset: Path | None = None) -> None:
    """Write `human.parquet`: the goals that people wrote for products of the shop, to test on."""
    items = [products.Product.from_row(row) for row in sources.product_rows(dataset)]
    found = [goal for item in items for goal in goals.human_goals(item)]
    if not found:
        raise DataError(f"none of the {len(items)} products has a goal that a person wrote (human_instructions)")
    write_rows(folder / HUMAN_FILE, (task_row(goal, "webshop_human") for goal in found))
    print(f"{len(found)} human goals of {len({goal.asin for goal in found})} products")


def make_data(config: Config) -> None:
    """The `data.prepare` of `base.yaml`: makes what is missing."""
    named = map(Path, (*config.data.train, *config.data.eval, *config.data.test, *config.sft.data))
    missing = [path for path in named if not path.is_file()]
    if any(path.name != HUMAN_FILE for path in missing):
        write_data(Path(config.data.train[0]).parent, config)
    for path in missing:
        if path.name == HUMAN_FILE:
            write_human(path.parent)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local_save_dir", type=Path, required=True, help="where the files go")
    parser.add_argument("--local_dataset_path", type=Path, help="take the products from this folder")
    parser.add_argument("--human", action="store_true", help=f"make {HUMAN_FILE}, goals that people wrote, instead")
    parser.add_argument("--no-extra", action="store_true", help="no training goals for products without instruction")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="changes to base.yaml")
    chosen = parser.parse_args(arguments)
    with recipe_folder(RECIPE):
        config = load_config(RECIPE, chosen.overrides)
        if chosen.human:
            write_human(chosen.local_save_dir, chosen.local_dataset_path)
        else:
            write_data(chosen.local_save_dir, config, chosen.local_dataset_path, extra=not chosen.no_extra)


if __name__ == "__main__":
    with script_errors():
        main()
