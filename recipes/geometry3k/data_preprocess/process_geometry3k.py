"""The data of geometry3k: its three official splits as rows, their figures beside them.

    python recipes/geometry3k/data_preprocess/process_geometry3k.py --local_save_dir runs/geometry3k_data

The parquet files of hiyouga/geometry3k on the Hugging Face hub are downloaded, unless `--local_dataset_path FOLDER` or
AGENT_R1_DATA says where they are (agent_r1/data/downloads.py). `agent-r1 train` calls `make_data` when a file that
`base.yaml` names is missing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from agent_r1.cli.errors import script_errors
from agent_r1.config import Config
from agent_r1.data import locate, read_raw, write_rows
from agent_r1.errors import DataError

_HUB = "https://huggingface.co/datasets/hiyouga/geometry3k/resolve/main/data"
SPLITS = ("train", "validation", "test")
SOURCES = {split: [f"{_HUB}/{split}-00000-of-00001.parquet"] for split in SPLITS}

INSTRUCTION = "Think step by step, then give the final answer in \\boxed{}."


def task_rows(files: Iterable[Path], split: str) -> Iterator[dict[str, Any]]:
    """The rows of one split. `problem` marks with <image> where its figure stands; `images` has the figures."""
    for index, row in enumerate(read_raw(files)):
        images, problem, answer = row.get("images"), row.get("problem"), row.get("answer")
        if not isinstance(problem, str) or not images or not isinstance(answer, str | int | float):
            raise DataError(
                f"row {index} of {split} is not of geometry3k: it needs 'images', 'problem' and 'answer'; found "
                f"{', '.join(sorted(row)) or 'nothing'}"
            )
        yield {
            "prompt": [{"role": "user", "content": f"{problem.strip()}\n\n{INSTRUCTION}"}],
            "images": list(images),
            "agent_name": "single_step",
            "data_source": "geometry3k",
            "reward_model": {"style": "rule", "ground_truth": str(answer)},
            "extra_info": {"split": split, "index": index},
        }


def write_data(folder: Path, local_dataset_path: Path | None = None) -> None:
    """Write `train.jsonl`, `validation.jsonl` and `test.jsonl`, the training file last."""
    files = locate("geometry3k", SOURCES, local_dataset_path)
    for split in reversed(SPLITS):
        write_rows(folder / f"{split}.jsonl", task_rows(files[split], split))


def make_data(config: Config) -> None:
    """The `data.prepare` of `base.yaml`."""
    write_data(Path(config.data.train[0]).parent)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local_save_dir", type=Path, required=True, help="where the files go")
    parser.add_argument("--local_dataset_path", type=Path, help="a folder with the parquet files of the three splits")
    arguments = parser.parse_args()
    with script_errors():
        write_data(arguments.local_save_dir, arguments.local_dataset_path)
