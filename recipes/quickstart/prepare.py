"""Making the quickstart's data, tokenizer and warm-started model from nothing, offline."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from agent_r1.config import Config
from agent_r1.files import write_atomically
from agent_r1.training import tiny_start

from .shop import demonstration, draw_basket, json_lines, task_row

NUM_TRAIN, NUM_VALIDATION, NUM_TEST, NUM_DEMONSTRATIONS = 2048, 256, 512, 2400


def make_data(config: Config) -> None:
    """Write the tasks to train on, to choose settings by, and to publish."""
    rng, test = random.Random("quickstart tasks"), random.Random("quickstart test tasks")
    data = config.data
    files = [(rng, data.eval, NUM_VALIDATION), (rng, data.train, NUM_TRAIN), (test, data.test, NUM_TEST)]
    for source, [path], count in files:
        write_atomically(Path(path), json_lines(task_row(draw_basket(source)) for _ in range(count)))


def make_warm_start(config: Config) -> None:
    """Write the careless shopper's demonstrations and warm-start a tiny model on them."""
    rng = random.Random("quickstart demonstrations")
    warm = Path(config.model.path).parent
    demonstrations = warm.with_name(f"{warm.name.removesuffix('_warm_start')}_data") / "demonstrations.jsonl"
    rows = (demonstration(draw_basket(rng), rng) for _ in range(NUM_DEMONSTRATIONS))
    write_atomically(demonstrations, json_lines(rows))
    tiny_start.make_warm_start(replace(config, sft=replace(config.sft, data=[str(demonstrations)])))
