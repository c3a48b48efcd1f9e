"""The model of nlvr, from scratch: larger than the tiny model, 36 tokens per image."""

from __future__ import annotations

from functools import partial

from agent_r1.config import Config
from agent_r1.training import tiny_start


def make_warm_start(config: Config) -> None:
    """The `model.prepare` of `base.yaml`: a model trained on `sft.data`."""
    from agent_r1.models import build_tiny_vision_model

    build = partial(build_tiny_vision_model, hidden_size=256, layers=4, image_size=96, context_length=1024)
    tiny_start.make_warm_start(config, build=build)
