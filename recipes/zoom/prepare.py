"""Making zoom's pictures, tasks, tokenizer and warm-started model from nothing, offline.

`agent-r1 train` calls `make_data` and `make_warm_start` when what they make is missing. The form for a GPU, a small
vision tower in front of a language model:

    python recipes/zoom/prepare.py --language_model SMOLLM2 --save_dir runs/zoom_smollm2
"""

from __future__ import annotations

import argparse
import random
from dataclasses import replace
from pathlib import Path

from agent_r1.config import Config
from agent_r1.data import write_rows
from agent_r1.registry import load_module, recipe_folder
from agent_r1.training import tiny_start

# A plain import would not find them when this file is run as a script.
with recipe_folder(Path(__file__).resolve().parent):
    rows, scenes = load_module("rows"), load_module("scenes")

NUM_TRAIN, NUM_VALIDATION, NUM_TEST, NUM_WARM_START = 512, 128, 512, 3000


def make_data(config: Config) -> None:
    """Write the tasks to train on, to choose settings by and to publish, and their pictures beside them."""
    rng, test, data = random.Random("zoom tasks"), random.Random("zoom test tasks"), config.data
    files = [(test, data.test, NUM_TEST), (rng, data.eval, NUM_VALIDATION), (rng, data.train, NUM_TRAIN)]
    for source, [path], count in files:
        write_rows(path, (rows.task_row(scenes.draw_scene(source)) for _ in range(count)))


def make_warm_start(config: Config) -> None:
    """Write demonstrations and captions, and warm-start a tiny model on them."""
    warm = Path(config.model.path).parent
    file = warm.with_name(f"{warm.name.removesuffix('_warm_start')}_data") / "warm_start.jsonl"
    write_warm_start(file)
    tiny_start.make_warm_start(replace(config, sft=replace(config.sft, data=[str(file)])))


def write_warm_start(file: Path, count: int = NUM_WARM_START) -> None:
    """Write the rows of the warm start."""
    rng = random.Random("zoom warm start")
    write_rows(file, (rows.warm_start_row(rng) for _ in range(count)))


def make_larger_model(language_model: Path, folder: Path, count: int) -> None:
    """Write the rows of the warm start and a model to be warm-started on them: the language model with a tower."""
    from agent_r1.models import add_vision_tower

    write_warm_start(folder / "data" / "warm_start.jsonl", count)
    add_vision_tower(language_model, folder / "model")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--language_model", type=Path, required=True, help="a folder with SmolLM2 or another Llama")
    parser.add_argument("--save_dir", type=Path, required=True, help="where model/ and data/ go")
    parser.add_argument("--rows", type=int, default=20_000, help="rows of the warm start")
    arguments = parser.parse_args()
    make_larger_model(arguments.language_model, arguments.save_dir, arguments.rows)
