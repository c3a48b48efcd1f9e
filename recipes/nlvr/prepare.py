"""The model of nlvr, from scratch: larger than the tiny model, and with an eye for single pixels."""

from __future__ import annotations

from functools import partial

from agent_r1.config import Config
from agent_r1.training import tiny_start

INPUT_BYTES = 6 * 2**30
"""What the processed images of the warm start may take: each is seen many times and takes milliseconds to process."""


def make_warm_start(config: Config) -> None:
    """The `model.prepare` of `base.yaml`: a model trained on `sft.data`.

    A box is shown to it pixel by pixel, 100 x 100: whether an item touches a wall is a matter of one pixel.
    """
    from agent_r1.images import image_store
    from agent_r1.models import build_tiny_vision_model

    image_store().inputs.max_bytes = INPUT_BYTES
    build = partial(
        build_tiny_vision_model,
        hidden_size=256,
        layers=4,
        image_size=100,
        patch_size=10,
        patches_per_token=2,
        context_length=1024,
    )
    tiny_start.make_warm_start(config, build=build)
