"""The data of paper_search: queries as parquet files, the collection of papers, demonstrations for the warm start.

    python recipes/paper_search/data_preprocess/process_paper_search.py --local_save_dir runs/paper_search_data

`agent-r1 train` calls `make_data` when a file that `base.yaml` names is missing. The settings of the environment are
those of `base.yaml`; overrides such as `'env.tools=["tools:search","tools:expand"]'` may follow.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from agent_r1.cli.errors import script_errors
from agent_r1.config import Config, load_config
from agent_r1.data import hold_out, write_rows
from agent_r1.envs import make_policy
from agent_r1.registry import load_module, recipe_folder
from agent_r1.tools import BaseTool

RECIPE = Path(__file__).resolve().parents[1]

# A plain import would not find them when this file is run as a script.
with recipe_folder(RECIPE):
    prompts, library = load_module("prompts"), load_module("library")
    demonstrations = load_module("demonstrations")
    sources = load_module("data_preprocess.sources")

NUM_HELD_OUT = 600
"""Queries to validate on, and as many to test on."""
NUM_DEMONSTRATIONS = 1200
"""Maximum demonstrations."""
MIN_RECALL = 0.5
"""A demonstration finds at least this share of the relevant papers."""


def split_queries(queries: Sequence[Any], count: int = NUM_HELD_OUT) -> dict[str, list[Any]]:
    """Queries to train on, to validate on and to test on. All queries of one source paper and of its other
    versions are in the same split."""
    rest, test = hold_out(queries, count, key=lambda query: f"paper {query.versions[0]}")
    train, validation = hold_out(rest, min(count, len(test)), key=lambda query: f"paper {query.versions[0]}")
    return {"train": train, "validation": validation, "test": test}


def task_row(query: Any, number: int, split: str, max_read: int) -> dict[str, Any]:
    """A query as a dataset row. The relevant papers go to the reward, what is hidden to the environment."""
    return {
        "task_id": f"{split}-{number}",
        "data_source": query.kind,
        "prompt": prompts.question_messages(query.kind, query.text, max_read),
        "agent_name": "env_loop",
        "reward_model": {"style": "rule", "ground_truth": list(query.relevant)},
        "env_kwargs": {"hidden": list(query.versions), "day": query.day, "query": query.text},
        "extra_info": {"split": split},
    }


def demonstration_rows(queries: Sequence[Any], config: Config) -> Iterator[dict[str, Any]]:
    """Demonstrations of some queries that find enough."""
    env = config.env
    policy = make_policy(env.get("context", "append"))
    tools = [tool for entry in env["tools"] for tool in BaseTool.find(entry)]
    schemas, names = [tool.tool_schema for tool in tools], [tool.name for tool in tools]
    chosen = random.Random("paper_search").sample(queries, min(NUM_DEMONSTRATIONS, len(queries)))
    settings = {"library": str(env["library"]), "limit": env["max_read"], "page": env["page"], "tools": names}
    starts = [demonstrations.Start(query=query, **settings) for query in chosen]
    recalls, calls = [], Counter[str]()
    for query, shown in zip(chosen, asyncio.run(demonstrations.demonstrate_all(starts)), strict=True):
        if shown.recall >= MIN_RECALL:
            recalls.append(shown.recall)
            calls.update(move.tool for move, _ in shown.calls)
            prompt = prompts.question_messages(query.kind, query.text, env["max_read"])
            yield from demonstrations.conversations(prompt, shown, policy, schemas)
    counts = ", ".join(f"{tool} {count}" for tool, count in calls.most_common())
    found = f"recall {mean(recalls):.3f}; calls: {counts}" if recalls else "none finds enough"
    print(f"{len(recalls)} of {len(chosen)} training queries have a demonstration: {found}")


def write_data(folder: Path, config: Config, dataset: Path | None = None) -> None:
    """Write the collection, `demonstrations.jsonl` and one file per split."""
    collection = sources.read_collection(dataset)
    library.Library.build(collection.papers, Path(config.env["library"]))
    splits = split_queries(collection.queries)
    for split, queries in splits.items():
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(q.kind for q in queries).items()))
        print(f"{split}: {len(queries)} queries of {len({query.source for query in queries})} papers ({kinds})")
    write_rows(folder / "demonstrations.jsonl", demonstration_rows(splits["train"], config))
    for split in ("test", "validation", "train"):
        rows = (task_row(query, number, split, config.env["max_read"]) for number, query in enumerate(splits[split]))
        write_rows(folder / f"{split}.parquet", rows)


def make_data(config: Config) -> None:
    """The `data.prepare` of `base.yaml`."""
    write_data(Path(config.data.train[0]).parent, config)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local_save_dir", type=Path, required=True, help="where the files go")
    parser.add_argument("--local_dataset_path", type=Path, help="prepared files, or a clone or archive of PeerRead")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="changes to base.yaml")
    chosen = parser.parse_args(arguments)
    with recipe_folder(RECIPE):
        config = load_config(RECIPE, chosen.overrides)
        if not any(override.startswith("env.library") for override in chosen.overrides):
            config.env["library"] = str(chosen.local_save_dir / "library")
        write_data(chosen.local_save_dir, config, chosen.local_dataset_path)


if __name__ == "__main__":
    with script_errors():
        main()
