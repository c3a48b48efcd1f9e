"""Real pictures through a model's folder: loader, processor, engine and learner against plain `transformers`."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from agent_r1.engines.local import LocalEngine
from agent_r1.images import Picture, image_store, is_image_id, load_image_processor
from agent_r1.learner.compute import Compute
from agent_r1.learner.packing import TRIE_ATTENTION, Sample, pack, pack_tries
from agent_r1.learner.scoring import score_samples
from agent_r1.models import load_policy
from agent_r1.types import SamplingParams, TokenIds
from tests.helpers.tiny_vlms import FAMILIES, make_tiny_vlm

pytestmark = pytest.mark.whole
CPU = torch.device("cpu")


def drawn(seed: int, width: int, height: int) -> Picture:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Picture.from_rgb(Image.fromarray(pixels, "RGB"))


def plain_logprobs(model: Any, placeholder: int, sample: Sample) -> Tensor:
    """From one forward pass of the plain model over ids and all pixels."""
    images = [span.image for span in image_store().spans(sample.token_ids) if not span.first]
    has_tiles = images[0].inputs["pixel_values"].ndim == 5  # [1, tiles, channels, height, width]
    ids = torch.tensor([[placeholder if is_image_id(token) else token for token in sample.token_ids]])
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if "image_grid_thw" in images[0].inputs:
        inputs["mm_token_type_ids"] = (ids == placeholder).int()
    for name in images[0].inputs:
        arrays = [torch.from_numpy(np.array(image.inputs[name])) for image in images]
        inputs[name] = torch.cat(arrays, dim=1 if has_tiles else 0)
    with torch.no_grad():
        logprobs = model(**inputs, use_cache=False).logits[0].log_softmax(-1)
    return torch.stack([logprobs[place - 1, sample.token_ids[place]] for place in sample.action_positions])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_conversation_with_pictures_is_scored_as_by_the_plain_model(family: str, tmp_path: Path) -> None:
    folder = make_tiny_vlm(family, tmp_path / "model")
    model: Any = load_policy(str(folder), dtype="float32", device=CPU, attention=TRIE_ATTENTION)
    processor = load_image_processor(folder)
    assert processor is not None
    pictures = [drawn(1, 64, 48), drawn(2, 120, 90), drawn(1, 64, 48)]
    engine = LocalEngine(model, kv_memory=16_384, prefill_tokens=64)
    # The placeholder must not be sampled as text: a plain model would take it for an image.
    known = [token for token in range(30, 60) if token != processor.placeholder_id]
    history: TokenIds = tuple(known[:20])
    samples: list[Sample] = []
    for number, picture in enumerate(pictures):
        prompt = (*history, *processor.prompt_ids(processor.encode(picture)), known[number], known[-1])
        completion = asyncio.run(engine.generate(prompt, SamplingParams(max_tokens=8, seed=number)))
        assert processor.placeholder_id not in completion.token_ids
        sample = Sample.of_step(prompt, completion.token_ids)
        expected = plain_logprobs(model, processor.placeholder_id, sample)
        torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0)
        samples.append(sample)
        history = sample.token_ids
    assert engine.stats.prefix_tokens > 0
    assert engine.stats.encoded_images == 2
    expected = torch.cat([plain_logprobs(model, processor.placeholder_id, sample) for sample in samples])
    for packing in (pack, pack_tries):
        compute = Compute(device=CPU, pack=partial(packing, max_tokens=8192))
        torch.testing.assert_close(score_samples(model, samples, compute), expected, atol=1e-4, rtol=0)
