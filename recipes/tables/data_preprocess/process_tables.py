"""The data of tables: its splits as parquet files, and demonstrations for the warm start.

    python recipes/tables/data_preprocess/process_tables.py --local_save_dir runs/tables_data

The public files are downloaded, unless `--local_dataset_path FOLDER` or AGENT_R1_DATA says where they are.
`agent-r1 train` calls `make_data` when a file that `base.yaml` names is missing.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_r1.cli.errors import script_errors
from agent_r1.config import Config
from agent_r1.data import write_rows
from agent_r1.registry import load_module, recipe_folder

RECIPE = Path(__file__).resolve().parents[1]

# A plain import would not find them when this file is run as a script.
with recipe_folder(RECIPE):
    prompts, table = load_module("prompts"), load_module("table")
    sources = load_module("data_preprocess.sources")
    demonstrations = load_module("demonstrations")


def task_row(question: Any, split: str) -> dict[str, Any]:
    """A question as a dataset row. The table goes to the tools."""
    shown = table.read_table(question.table)
    return {
        "task_id": f"{question.source}-{question.question_id}",
        "data_source": question.source,
        "prompt": prompts.question_messages(shown, question.text, question.paragraphs),
        "agent_name": "env_loop",
        "reward_model": truth(question),
        "env_kwargs": {"table": question.table},
        "extra_info": {"split": split, "table": question.table_id},
    }


def truth(question: Any) -> dict[str, Any]:
    """What the reward is computed from."""
    return {
        "style": "rule",
        "ground_truth": list(question.values),
        "scale": question.scale,
        "derivation": question.derivation,
        "numeric": question.numeric,
    }


def describe(splits: Any) -> str:
    """How many questions there are."""
    lines = []
    for name in ("train", "validation", "test"):
        questions = getattr(splits, name)
        counts = ", ".join(
            f"{len(chosen)} of {source} about {len({question.table_id for question in chosen})} tables"
            for source in (sources.WTQ, sources.TATQA)
            if (chosen := [question for question in questions if question.source == source])
        )
        lines.append(f"{name}: {counts}")
    return "\n".join(lines)


def write_data(folder: Path, dataset: Path | None = None, limit: int | None = None) -> None:
    """Write `demonstrations.jsonl` and the splits, the test questions of each source by themselves; `train` last."""
    splits = sources.read_splits(dataset)
    print(describe(splits))
    shown = asyncio.run(demonstrations.make_demonstrations(splits.train, limit or demonstrations.MAX_DEMONSTRATIONS))
    print(demonstrations.describe(shown))
    write_rows(folder / "demonstrations.jsonl", (row for _, row in shown.kept))
    for source in (sources.WTQ, sources.TATQA):
        rows = (task_row(question, "test") for question in splits.test if question.source == source)
        write_rows(folder / f"test_{source}.parquet", rows)
    for split in ("validation", "train"):
        write_rows(folder / f"{split}.parquet", (task_row(question, split) for question in getattr(splits, split)))


def make_data(config: Config) -> None:
    """The `data.prepare` of `base.yaml`."""
    write_data(Path(config.data.train[0]).parent)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local_save_dir", type=Path, required=True, help="where the files go")
    parser.add_argument("--local_dataset_path", type=Path, help="a folder with wikitablequestions/ and tatqa/")
    parser.add_argument("--demonstrations", type=int, help="maximum demonstrations")
    chosen = parser.parse_args(arguments)
    with recipe_folder(RECIPE):
        write_data(chosen.local_save_dir, chosen.local_dataset_path, chosen.demonstrations)


if __name__ == "__main__":
    with script_errors():
        main()
