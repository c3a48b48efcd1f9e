"""The model of nlvr, from scratch: larger than the tiny model, and with an eye for single pixels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_r1.config import Config
from agent_r1.training import tiny_start

INPUT_BYTES = 9 * 2**30
"""What the processed images of the warm start may take: each is seen many times and takes milliseconds to process."""
TOKENIZER_ROWS, SENTENCES_PER_ROW = 400, 50
"""The tokenizer reads so many demonstrations and, in rows of so many, the sentences of others: their rarer words would
be cut into pieces otherwise."""


def make_warm_start(config: Config) -> None:
    """The `model.prepare` of `base.yaml`: a model trained on `sft.data`."""
    from agent_r1.images import image_store

    image_store().inputs.max_bytes = INPUT_BYTES
    tiny_start.make_warm_start(config, build=build_model)


def build_model(demonstrations: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write the model with random weights. A box is shown to it pixel by pixel, 100 x 100: whether an item touches a
    wall is a matter of one pixel."""
    from agent_r1.models import build_tiny_vision_model

    build_tiny_vision_model(
        tokenizer_rows(demonstrations),
        folder,
        hidden_size=256,
        layers=4,
        image_size=100,
        patch_size=10,
        patches_per_token=2,
        context_length=1024,
    )


def tokenizer_rows(demonstrations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Some demonstrations, and the questions of many without pictures, several in a row."""
    told = (row["messages"][0]["content"] for row in demonstrations)
    questions = list(dict.fromkeys(content for content in told if isinstance(content, str)))
    texts = [
        " ".join(questions[start : start + SENTENCES_PER_ROW]) for start in range(0, len(questions), SENTENCES_PER_ROW)
    ]
    return [
        *demonstrations[:TOKENIZER_ROWS],
        *({"messages": [{"role": "user", "content": text}]} for text in texts),
    ]
