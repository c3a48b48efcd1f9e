"""The files of `sample/`: a few tasks of each kind, their users, all orders of these, and the products in them.

    python recipes/tau_retail/data_preprocess/make_sample.py DATA recipes/tau_retail/sample

DATA is a folder with the packed files, or a clone of tau-bench.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_r1.files import write_atomically
from agent_r1.registry import load_module, recipe_folder

with recipe_folder(Path(__file__).resolve().parents[1]):
    sources = load_module("data_preprocess.sources")

COUNTS = {"train": 36, "dev": 5, "test": 10}


def chosen_tasks(tasks: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """So many tasks: first those that have an action, or an output, that none before has; then the first ones."""
    chosen: list[int] = []
    seen: set[str] = set()
    for number, task in enumerate(tasks):
        kinds = {action["name"] for action in task["actions"]} | ({"output"} if task["outputs"] else set())
        if not kinds <= seen and len(chosen) < count:
            seen |= kinds
            chosen.append(number)
    chosen += [number for number in range(len(tasks)) if number not in chosen][: count - len(chosen)]
    return [tasks[number] for number in sorted(chosen)]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args(arguments)
    retail = sources.read_retail(given.data)
    tasks = {split: chosen_tasks(some, COUNTS[split]) for split, some in retail.tasks.items()}
    users = {task["user_id"] for some in tasks.values() for task in some}
    orders = {key: order for key, order in retail.database.orders.items() if order["user_id"] in users}
    products = {item["product_id"] for order in orders.values() for item in order["items"]}
    tables = {
        "users": {key: user for key, user in retail.database.users.items() if key in users},
        "orders": orders,
        "products": {key: product for key, product in retail.database.products.items() if key in products},
    }
    rows: dict[str, list[Any]] = {
        f"retail_{name}": [{"key": key, "value": value} for key, value in table.items()]
        for name, table in tables.items()
    }
    rows |= {f"retail_tasks_{split}": list(some) for split, some in tasks.items()}
    for name, some in rows.items():
        text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in some)
        write_atomically(given.folder / f"{name}.jsonl", text)
    write_atomically(given.folder / "retail_policy.md", retail.policy)
    print({name: len(some) for name, some in rows.items()})


if __name__ == "__main__":
    main()
