"""The data of tau_retail: the shop's database and policy, tasks as parquet files, demonstrations for the warm start.

    python recipes/tau_retail/data_preprocess/process_tau_retail.py --local_save_dir runs/tau_retail_data

`agent-r1 train` calls `make_data` when a file that `base.yaml` names is missing. Demonstrations show what the
environment of `base.yaml` shows; overrides such as `env.form=json` may follow.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_r1.cli.errors import script_errors
from agent_r1.config import Config, load_config
from agent_r1.data import hold_out, task_from_row, write_rows
from agent_r1.errors import DataError
from agent_r1.files import write_atomically
from agent_r1.registry import load_module, recipe_folder
from agent_r1.types import Task

RECIPE = Path(__file__).resolve().parents[1]

# A plain import would not find them when this file is run as a script.
with recipe_folder(RECIPE):
    database = load_module("database")
    environment = load_module("env")
    expert = load_module("expert")
    prompts = load_module("prompts")
    tools = load_module("tools")
    sources = load_module("data_preprocess.sources")
    unnamed = load_module("data_preprocess.unnamed")

NUM_HELD_OUT = 60
"""Training tasks to validate on, beside the tasks of `dev`."""
MAX_WRITES = 3
"""Maximum changes in a demonstration: longer ones do not fit the context."""


def task_row(task: dict[str, Any], task_id: str, source: str, folder: Path) -> dict[str, Any]:
    """A task as a dataset row. Only the environment reads the gold actions and outputs."""
    system = prompts.system_text("short", solo=True, folder=str(folder))
    return {
        "task_id": task_id,
        "data_source": source,
        "prompt": prompts.first_messages(system, task["instruction"]),
        "agent_name": "env_loop",
        "env_kwargs": {name: task[name] for name in ("instruction", "actions", "outputs")},
        "extra_info": {
            "user_id": task["user_id"],
            "num_writes": sum(action["name"] in tools.WRITING for action in task["actions"]),
        },
    }


def split_rows(retail: Any, folder: Path, *, extra: bool = True) -> dict[str, list[dict[str, Any]]]:
    """The rows of each split. No user of a training task is in the validation tasks that are held out of them."""
    numbered = [{**task, "task_id": f"train-{number}"} for number, task in enumerate(retail.tasks["train"])]
    train, held = hold_out(numbered, NUM_HELD_OUT, key=lambda task: task["user_id"])
    more = [other for task in train if (other := unnamed.without_ids(retail.database, task))] if extra else []
    dev = [{**task, "task_id": f"dev-{number}"} for number, task in enumerate(retail.tasks["dev"])]
    test = [{**task, "task_id": f"test-{number}"} for number, task in enumerate(retail.tasks["test"])]
    splits = {
        "train": [*((task, "synthetic") for task in train), *((task, "unnamed") for task in more)],
        "validation": [*((task, "synthetic") for task in held), *((task, "dev") for task in dev)],
        "test": [(task, "test") for task in test],
    }
    return {
        split: [task_row(task, task["task_id"], source, folder) for task, source in tasks]
        for split, tasks in splits.items()
    }


def environment_arguments(config: Config, folder: Path) -> dict[str, Any]:
    """The arguments of the environment in which demonstrations are played: always solo."""
    names = ("context", "policy", "form")
    return {"shop": str(folder), "user": "solo", **{name: config.env[name] for name in names if name in config.env}}


def write_data(folder: Path, config: Config, dataset: Path | None = None, *, extra: bool = True) -> None:
    """Write the database, the policy, `demonstrations.jsonl` and one file per split."""
    retail = sources.read_retail(dataset)
    retail.database.write(folder)
    write_atomically(folder / prompts.POLICY_FILE, retail.policy)
    database.open_database.cache_clear()
    splits = split_rows(retail, folder, extra=extra)
    tasks: list[Task] = [task_from_row(row, row["task_id"]) for row in splits["train"]]
    short = [task for task in tasks if task.extra_info["num_writes"] <= MAX_WRITES]
    arguments = environment_arguments(config, folder)
    shown = asyncio.run(
        expert.demonstrations(lambda: environment.RetailEnv(**arguments), database.open_database(str(folder)), short)
    )
    if not shown:
        raise DataError(f"the expert solves none of {len(short)} training tasks; are they of this database?")
    write_rows(folder / "demonstrations.jsonl", (row for _, rows in shown for row in rows))
    for split in ("test", "validation", "train"):
        write_rows(folder / f"{split}.parquet", splits[split])
    sizes = ", ".join(f"{split} {len(rows)}" for split, rows in splits.items())
    print(
        f"Tasks: {sizes}. The expert solves {len(shown)} of {len(short)} training tasks of up to {MAX_WRITES} changes"
    )


def make_data(config: Config) -> None:
    """The `data.prepare` of `base.yaml`."""
    write_data(Path(config.data.train[0]).parent, config)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local_save_dir", type=Path, required=True, help="where the files go")
    parser.add_argument("--local_dataset_path", type=Path, help="packed files, or a clone of tau-bench")
    parser.add_argument("--no-extra", action="store_true", help="no training tasks whose ids are left out")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="changes to base.yaml")
    chosen = parser.parse_args(arguments)
    with recipe_folder(RECIPE):
        config = load_config(RECIPE, chosen.overrides)
        write_data(chosen.local_save_dir, config, chosen.local_dataset_path, extra=not chosen.no_extra)


if __name__ == "__main__":
    with script_errors():
        main()
