"""Making the quickstart's data, tokenizer and warm-started model from nothing, offline."""

from __future__ import annotations

import random
from pathlib import Path

import agent_r1
from agent_r1.config import Config
from agent_r1.rollout import write_atomically

from .shop import demonstration, draw_basket, json_lines, task_row
from .tiny_model import build_tiny_model

NUM_TRAIN, NUM_EVAL, NUM_DEMONSTRATIONS = 2048, 256, 2400


def make_data(config: Config) -> None:
    """Write the training and held-out tasks."""
    rng = random.Random("quickstart tasks")
    for path, count in ((config.data.eval[0], NUM_EVAL), (config.data.train[0], NUM_TRAIN)):
        write_atomically(Path(path), json_lines(task_row(draw_basket(rng)) for _ in range(count)))


def make_warm_start(config: Config) -> None:
    """Write demonstrations, train a tokenizer on them, build a tiny model and warm-start it with `agent_r1.sft`."""
    rng = random.Random("quickstart demonstrations")
    rows = [demonstration(draw_basket(rng), rng) for _ in range(NUM_DEMONSTRATIONS)]
    warm = Path(config.model.path).parent
    untrained, demonstrations = warm.with_name("quickstart_untrained"), warm.with_name("quickstart_data")
    write_atomically(demonstrations / "demonstrations.jsonl", json_lines(iter(rows)))
    build_tiny_model(rows, untrained)
    agent_r1.sft(
        str(Path(__file__).parent),
        f"run.folder={warm.parent}",
        f"run.name={warm.name}",
        "run.resume=never",
        f"model.path={untrained}",
        f"data.train=[{config.data.train[0]}]",
        f"sft.data=[{demonstrations / 'demonstrations.jsonl'}]",
        f"sft.steps={config.sft.steps}",
        f"sft.batch_size={config.sft.batch_size}",
        f"sft.learning_rate={config.sft.learning_rate}",
    )
