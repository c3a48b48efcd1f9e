"""The data of bfcl: rows to evaluate on, of every category.

    python recipes/bfcl/data_preprocess/process_bfcl.py --local_save_dir runs/bfcl_data

`agent-r1 eval` calls `make_data` when the file that `base.yaml` names is missing.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_r1.cli.errors import script_errors
from agent_r1.config import Config
from agent_r1.data import write_rows
from agent_r1.registry import load_module, recipe_folder

RECIPE = Path(__file__).resolve().parents[1]

# A plain import would not find it when this file is run as a script.
with recipe_folder(RECIPE):
    sources = load_module("data_preprocess.sources")


def task_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of BFCL as a dataset row; figures are given per category."""
    return {
        "task_id": f"bfcl-{row['id']}",
        "data_source": row["category"],
        "prompt": row["messages"],
        "agent_name": "env_loop",
        "env_kwargs": {"functions": row["tools"]},
        "reward_model": {"style": "calls", "ground_truth": row["ground_truth"]},
    }


def write_data(folder: Path, dataset: Path | None = None) -> None:
    """Write `test.jsonl`."""
    rows = sources.bfcl_rows(dataset)
    write_rows(folder / "test.jsonl", map(task_row, rows))
    counts = Counter(row["category"] for row in rows)
    print(f"{len(rows)} rows: " + ", ".join(f"{name} {count}" for name, count in counts.most_common()))


def make_data(config: Config) -> None:
    """The `data.prepare` of `base.yaml`: makes what is missing."""
    if not all(Path(path).is_file() for path in config.data.test):
        write_data(Path(config.data.test[0]).parent)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local_save_dir", type=Path, required=True, help="where the file goes")
    parser.add_argument("--local_dataset_path", type=Path, help="take the rows from this folder")
    chosen = parser.parse_args(arguments)
    write_data(chosen.local_save_dir, chosen.local_dataset_path)


if __name__ == "__main__":
    with script_errors():
        main()
