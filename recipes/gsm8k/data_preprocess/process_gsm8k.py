"""The data of gsm8k: its splits as parquet files, and worked solutions for the warm start.

    python recipes/gsm8k/data_preprocess/process_gsm8k.py --local_save_dir runs/gsm8k_data

The official files are downloaded, unless `--local_dataset_path FOLDER` or AGENT_R1_DATA says where they are
(agent_r1/data/downloads.py). `agent-r1 train` calls `make_data` when a file that `base.yaml` names is missing.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_r1.cli.errors import script_errors
from agent_r1.config import Config
from agent_r1.data import hold_out, locate, read_raw, write_rows
from agent_r1.errors import DataError
from agent_r1.registry import load_module, recipe_folder

# A plain import would not find it when this file is run as a script.
with recipe_folder(Path(__file__).resolve().parents[1]):
    prompts = load_module("prompts")

_OFFICIAL = "https://raw.githubusercontent.com/openai/grade-school-math/master/grade_school_math/data"
SOURCES = {split: [f"{_OFFICIAL}/{split}.jsonl"] for split in ("train", "test")}

NUM_VALIDATION = 512
"""How many problems of the training split are held out."""

_ANNOTATION = re.compile(r"<<[^<>]*>>")


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One row of GSM8K."""

    question: str
    """The question."""
    worked: str
    """The solution in words, with calculations marked as `<<48/2=24>>`."""
    answer: str
    """The number, without commas."""

    @property
    def solution(self) -> str:
        """The solution as people would write it: "48/2 = <<48/2=24>>24" becomes "48/2 = 24"."""
        return _ANNOTATION.sub("", self.worked)


def read_problems(files: Iterable[Path]) -> Iterator[Problem]:
    """The problems of GSM8K's own files.

    {"question": "How many?", "answer": "Half of 8 is <<8/2=4>>4.\\n#### 4"} gives a `Problem` with the answer "4".
    """
    for number, row in enumerate(read_raw(files)):
        worked, mark, answer = str(row.get("answer", "")).rpartition("####")
        answer = answer.strip().replace(",", "")
        if "question" not in row or not mark or not re.fullmatch(r"-?\d+(\.\d+)?", answer):
            raise DataError(
                f"row {number} is not of GSM8K: it needs 'question' and an 'answer' that ends in '#### n'; "
                f"found {row!r:.200}"
            )
        yield Problem(question=str(row["question"]).strip(), worked=worked.strip(), answer=answer)


def read_splits(local_dataset_path: Path | None = None) -> dict[str, list[Problem]]:
    """GSM8K's own test split, and its training split, of which some problems are held out for validation."""
    files = locate("gsm8k", SOURCES, local_dataset_path)
    train, test = (list(read_problems(files[split])) for split in ("train", "test"))
    train, validation = hold_out(train, NUM_VALIDATION, key=lambda problem: problem.question)
    return {"train": train, "validation": validation, "test": test}


def write_splits(
    folder: Path, splits: Mapping[str, Sequence[Problem]], row: Callable[[Problem, str, int], dict[str, Any]]
) -> None:
    """Write `<split>.parquet` for each split; the one to train on last, since a run begins when all are there."""
    for split in ("test", "validation", "train"):
        rows = (row(problem, split, index) for index, problem in enumerate(splits[split]))
        write_rows(folder / f"{split}.parquet", rows)


def task_row(problem: Problem, split: str, index: int) -> dict[str, Any]:
    """A problem as a dataset row."""
    return {
        "data_source": "gsm8k",
        "prompt": prompts.question(problem.question),
        "agent_name": "single_step",
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "env_kwargs": {},
        "extra_info": {"split": split, "index": index},
    }


def demonstration(problem: Problem) -> dict[str, Any]:
    """A problem with GSM8K's own solution, to imitate."""
    row: dict[str, Any] = prompts.demonstration(problem.question, problem.solution, problem.answer)
    return row


def write_data(folder: Path, local_dataset_path: Path | None = None) -> None:
    """Write `demonstrations.jsonl` and one file per split."""
    splits = read_splits(local_dataset_path)
    write_rows(folder / "demonstrations.jsonl", map(demonstration, splits["train"]))
    write_splits(folder, splits, task_row)


def make_data(config: Config) -> None:
    """The `data.prepare` of `base.yaml`."""
    write_data(Path(config.data.train[0]).parent)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local_save_dir", type=Path, required=True, help="where the files go")
    parser.add_argument("--local_dataset_path", type=Path, help="a folder with train.jsonl and test.jsonl of GSM8K")
    arguments = parser.parse_args()
    with script_errors():
        write_data(arguments.local_save_dir, arguments.local_dataset_path)
