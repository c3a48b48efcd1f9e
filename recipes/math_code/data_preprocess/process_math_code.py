"""The data of math_code: its splits as parquet files, and demonstrations for the warm start.

    python recipes/math_code/data_preprocess/process_math_code.py --local_save_dir runs/math_code_data

The public files are downloaded, unless `--local_dataset_path FOLDER` or AGENT_R1_DATA says where they are.
`agent-r1 train` calls `make_data` when a file that `base.yaml` names is missing.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_r1.cli.errors import script_errors
from agent_r1.config import Config
from agent_r1.data import write_rows
from agent_r1.registry import load_module, recipe_folder

RECIPE = Path(__file__).resolve().parents[1]

# A plain import would not find them when this file is run as a script.
with recipe_folder(RECIPE):
    prompts = load_module("prompts")
    grader = load_module("grader")
    sources = load_module("data_preprocess.sources")
    demonstrations = load_module("demonstrations")


def task_row(problem: Any, split: str, number: int) -> dict[str, Any]:
    """A problem as a dataset row."""
    return {
        "task_id": f"{problem.source}-{problem.problem_id or f'{split}-{number}'}",
        "data_source": problem.source,
        "prompt": prompts.question(problem.text),
        "agent_name": "env_loop",
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "env_kwargs": {},
        "extra_info": {"split": split, "subject": problem.subject, "level": problem.level},
    }


def describe(splits: Any) -> str:
    """How many problems there are, and how many were left out, and why."""
    test = ", ".join(
        f"{sum(problem.source == name for problem in splits.test)} of {name}" for name in ("math500", "aime24")
    )
    reasons = ", ".join(f"{count} {reason}" for reason, count in splits.left_out.items() if count) or "none"
    counts = f"{len(splits.train)} to train on, {len(splits.validation)} for validation, {test} to test on"
    return f"problems: {counts}; left out: {reasons}"


def read_graded(folder: Path | None = None) -> Any:
    """The splits, without the rows whose gold answer math-verify does not accept as its own."""
    plain = sources.read_splits(folder)
    answers = [problem.answer for problem in (*plain.train, *plain.validation)]
    usable: Mapping[str, bool] = asyncio.run(grader.accepted_as_own(answers))
    return sources.read_splits(folder, usable=usable)


def write_data(folder: Path, dataset: Path | None = None) -> None:
    """Write `demonstrations.jsonl` and one file per split; the one to train on last."""
    splits = read_graded(dataset)
    print(describe(splits))
    shown = asyncio.run(demonstrations.make_demonstrations(splits.train))
    print(demonstrations.describe(shown, len(splits.train)))
    write_rows(folder / "demonstrations.jsonl", (row for _, row in shown))
    for split in ("test", "validation", "train"):
        rows = (task_row(problem, split, number) for number, problem in enumerate(getattr(splits, split)))
        write_rows(folder / f"{split}.parquet", rows)


def make_data(config: Config) -> None:
    """The `data.prepare` of `base.yaml`."""
    write_data(Path(config.data.train[0]).parent)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local_save_dir", type=Path, required=True, help="where the files go")
    parser.add_argument("--local_dataset_path", type=Path, help="take the problems from this folder")
    chosen = parser.parse_args(arguments)
    with recipe_folder(RECIPE):
        write_data(chosen.local_save_dir, chosen.local_dataset_path)


if __name__ == "__main__":
    with script_errors():
        main()
