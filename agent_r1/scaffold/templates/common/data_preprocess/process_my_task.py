"""The data of my_task: tasks as parquet files, and demonstrations for the warm start.

    python data_preprocess/process_my_task.py --local_save_dir FOLDER

`agent-r1 train` calls `make_data` when a file that `base.yaml` names is missing.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_r1.config import Config
from agent_r1.data import write_rows
from agent_r1.registry import load_module, recipe_folder

# A plain import would not find it when this file is run as a script.
with recipe_folder(Path(__file__).resolve().parents[1]):
    prompts = load_module("prompts")

PEOPLE = ("Ann", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivo", "Jane", "Kim", "Leo")
LOCKERS = ("1", "2", "3", "4", "5", "6", "7", "8", "9")
COLOURS = ("red", "blue", "green", "black", "white", "pink", "grey", "gold")

NUM_TRAIN, NUM_EVAL, NUM_DEMONSTRATIONS = 1024, 128, 1500

CARE = 0.3
"""The share of demonstrations that look twice. The others stop half way, which leaves something to learn."""


@dataclass(frozen=True)
class Case:
    """One task: whose locker is asked for, and what the register of this task says."""

    person: str
    register: dict[str, str]

    @property
    def locker(self) -> str:
        """The number of the person's locker."""
        return self.register[self.person]

    @property
    def colour(self) -> str:
        """The answer."""
        return self.register[self.locker]


def draw_case(rng: random.Random) -> Case:
    """A random case. The register is drawn anew every time, so an answer can be found but not known."""
    lockers = {person: rng.choice(LOCKERS) for person in PEOPLE}
    colours = {locker: rng.choice(COLOURS) for locker in LOCKERS}
    return Case(person=rng.choice(PEOPLE), register=lockers | colours)


def task_row(case: Case, split: str, index: int) -> dict[str, Any]:
    """The case as a dataset row. The reward reads `reward_model`; tools and environments only `env_kwargs`."""
    return {
        "data_source": "my_task",
        "prompt": prompts.question(case.person),
        "agent_name": "my_agent",
        "reward_model": {"style": "rule", "ground_truth": case.colour},
        "env_kwargs": {"register": case.register},
        "extra_info": {"split": split, "index": index},
    }


def demonstrations(case: Case, *, careful: bool) -> list[dict[str, Any]]:
    """Conversations to imitate: one that answers the case, or one that stops half way."""
    rows: list[dict[str, Any]] = prompts.demonstrations(case.person, case.locker, case.colour, careful=careful)
    return rows


def write_data(folder: Path) -> None:
    """Write `demonstrations.jsonl`, `eval.parquet` and `train.parquet`."""
    rng = random.Random(0)
    shown = [demonstrations(draw_case(rng), careful=rng.random() < CARE) for _ in range(NUM_DEMONSTRATIONS)]
    write_rows(folder / "demonstrations.jsonl", (row for rows in shown for row in rows))
    for split, count in (("eval", NUM_EVAL), ("train", NUM_TRAIN)):
        write_rows(folder / f"{split}.parquet", (task_row(draw_case(rng), split, i) for i in range(count)))


def make_data(config: Config) -> None:
    """The `data.prepare` of `base.yaml`."""
    write_data(Path(config.data.train[0]).parent)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local_save_dir", type=Path, required=True, help="where the files go")
    write_data(parser.parse_args().local_save_dir)
