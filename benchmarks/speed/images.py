"""Images: rollouts and updates of a vision-language model beside the same numbers of tokens of text.

    python benchmarks/speed/images.py --json images.json    # the shape of Qwen2-VL-2B with random weights, a GPU
    python benchmarks/speed/images.py --tiny                # every row in seconds, also without a GPU

rollout   tokens per second of groups of requests whose prompt has one image of 448 x 448 pixels (256 tokens), beside
          text prompts of the same length; images that went through the tower per group. Prompts and images are fresh
          for every repeat.
update    seconds of one update on multi-turn conversations, one image per group, on token tries and on one padded row
          per step; and of the same numbers of tokens of text on tries. The projector is trained, the tower is not;
          every repeat has images that no cache has seen.

Weights are random and pixels too: neither changes what is computed. On a GPU the engine is bfloat16 and updates hold
float32 weights and compute in bfloat16, the defaults of a run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the clone: agent_r1, benchmarks, recipes

from agent_r1.config import Config, load_config
from agent_r1.engines.local import LocalEngine
from agent_r1.files import write_atomically
from agent_r1.images import EncodedImage, image_store
from agent_r1.learner import TorchLearner, make_compute
from agent_r1.learner.packing import TRIE_ATTENTION
from agent_r1.models import choose_device, compile_layers, freeze_vision, set_attention
from agent_r1.types import SamplingParams, TokenIds
from benchmarks.common.prompts import FIRST_PLAIN_ID, Workload
from benchmarks.common.updates import median_and_fastest, synchronise
from benchmarks.common.workloads import Conversations, grpo_learner, multi_turn_experience


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large everything is."""

    text: dict[str, Any]
    """The language model."""
    vision: dict[str, Any]
    """The tower."""
    grid: int
    """Image tokens in a row and in a column."""
    rollout: Workload
    """Its prompts contain the image."""
    conversations: Conversations
    """Their questions come after the image."""
    micro_batch_tokens: int

    @property
    def image_tokens(self) -> int:
        """Tokens of an image."""
        return self.grid**2


_ROPE = {"rope_type": "default", "rope_theta": 1e6}
FULL = Sizes(
    text={
        "vocab_size": 151_936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32_768,
        "rope_parameters": {**_ROPE, "mrope_section": [16, 24, 24]},
    },
    vision={"depth": 32, "embed_dim": 1280, "hidden_size": 1536, "num_heads": 16, "patch_size": 14},
    grid=16,
    rollout=Workload(groups=64, members=8, prompt_tokens=512, new_tokens=128),
    conversations=Conversations(groups=24, members=8, turns=5, preamble=256, question=64, action=64, answer=64),
    micro_batch_tokens=16384,
)
TINY = Sizes(
    text={
        "vocab_size": 200,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rope_parameters": {**_ROPE, "mrope_section": [2, 1, 1]},
    },
    vision={"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "patch_size": 4, "mlp_ratio": 2},
    grid=2,
    rollout=Workload(groups=3, members=4, prompt_tokens=40, new_tokens=4),
    conversations=Conversations(groups=2, members=4, turns=3, preamble=8, question=4, action=6, answer=6),
    micro_batch_tokens=2048,
)


def make_model(sizes: Sizes, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """A model of the shape of Qwen2-VL with random weights."""
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    config = Qwen2VLConfig(
        text_config=sizes.text,
        vision_config=sizes.vision,
        tie_word_embeddings=True,
        image_token_id=5,
        video_token_id=6,
        vision_start_token_id=7,
        vision_end_token_id=8,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model: nn.Module = Qwen2VLForConditionalGeneration(config)
    model = model.to(dtype).eval()
    set_attention(model, TRIE_ATTENTION)
    return model


def fresh_image(sizes: Sizes, seed: int) -> TokenIds:
    """The tokens of an image of random pixels that nothing has seen before."""
    rows, patch = 2 * sizes.grid, sizes.vision["patch_size"]
    pixels = np.random.default_rng(seed).random((rows * rows, 3 * 2 * patch * patch), dtype=np.float32)
    image = EncodedImage(
        key=f"benchmark image {seed}",
        num_tokens=sizes.image_tokens,
        inputs={"pixel_values": pixels, "image_grid_thw": np.array([[1, rows, rows]])},
        grid=(sizes.grid, sizes.grid),
    )
    image_store().add(image)
    return image.token_ids


def prompts_of(sizes: Sizes, seed: int, *, with_images: bool) -> list[TokenIds]:
    """One prompt per request, members of a group beside each other, all of the same length."""
    rng, prompts = random.Random(seed), []
    for group in range(sizes.rollout.groups):
        words = rng.choices(range(FIRST_PLAIN_ID, sizes.text["vocab_size"]), k=sizes.rollout.prompt_tokens)
        if with_images:
            before = (len(words) - sizes.image_tokens) // 2
            words[before : before + sizes.image_tokens] = fresh_image(sizes, 1000 * seed + group)
        prompts += [tuple(words)] * sizes.rollout.members
    return prompts


def rollout_rows(sizes: Sizes, device: torch.device, repeats: int, *, compiled: bool) -> Iterator[dict[str, Any]]:
    """Tokens per second of text and of images."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    engine = LocalEngine(
        make_model(sizes, device, dtype),
        max_requests=sizes.rollout.num_requests,
        context_length=sizes.rollout.prompt_tokens + sizes.rollout.new_tokens,
        kv_memory=2 * sizes.rollout.num_requests * (sizes.rollout.prompt_tokens + sizes.rollout.new_tokens),
        compile_layers=compiled,
    )

    async def seconds(prompts: Sequence[TokenIds], seed: int) -> float:
        synchronise()
        started = time.perf_counter()
        sampling = SamplingParams(max_tokens=sizes.rollout.new_tokens, temperature=1.0)
        await asyncio.gather(
            *(engine.generate(prompt, replace(sampling, seed=seed + place)) for place, prompt in enumerate(prompts))
        )
        return time.perf_counter() - started

    async def measure() -> dict[str, float]:
        taken: dict[bool, list[float]] = {False: [], True: []}
        num_encoded = 0
        for repeat in range(repeats + 1):  # the first one warms up
            for with_images, found in taken.items():
                before = engine.stats.encoded_images
                found.append(
                    await seconds(prompts_of(sizes, 2 * repeat + with_images, with_images=with_images), repeat)
                )
                num_encoded = engine.stats.encoded_images - before if with_images else num_encoded
        await engine.close()
        text, images = (sizes.rollout.num_new_tokens / statistics.median(found[1:]) for found in taken.values())
        return {
            "text_tokens_per_second": text,
            "image_tokens_per_second": images,
            "share_of_text": images / text,
            "images_encoded_per_group": num_encoded / sizes.rollout.groups,
        }

    yield {"kind": "rollout", "case": sizes.rollout.name, "figures": asyncio.run(measure())}


def update_rows(sizes: Sizes, device: torch.device, repeats: int, *, compiled: bool) -> Iterator[dict[str, Any]]:
    """Seconds of updates on tries with images, on rows with images, and on tries with text alone."""
    cases = (("tries", True, "trie"), ("rows", True, "rows"), ("text on tries", False, "trie"))
    figures: dict[str, float] = {}
    for name, with_images, packing in cases:
        config = load_config(
            None,
            [
                "model.path=random",
                f"trainer.packing={packing}",
                f"trainer.micro_batch_tokens={sizes.micro_batch_tokens}",
                f"trainer.device={device.type}",
            ],
        )
        learner = _learner(sizes, config, device, compiled=compiled)
        found = []
        for repeat in range(repeats + 1):
            shape = sizes.conversations
            if not with_images:
                shape = replace(shape, question=shape.question + sizes.image_tokens)
            experience = multi_turn_experience(
                shape,
                vocabulary=sizes.text["vocab_size"],
                seed=repeat,
                shown=_shower(sizes, repeat) if with_images else lambda group: (),
            )
            synchronise()
            started = time.perf_counter()
            learner.learn_sync(experience, step=0)
            synchronise()
            found.append(time.perf_counter() - started)
        seconds = median_and_fastest(found[1:])
        figures[name] = seconds["seconds"]
        yield {"kind": "update", "case": f"{name}: {sizes.conversations.name}", "figures": seconds}
        del learner
    ratios = {
        "rows_over_tries": figures["rows"] / figures["tries"],
        "text_over_images": figures["text on tries"] / figures["tries"],
    }
    yield {"kind": "update", "case": "ratios", "figures": ratios}


def _shower(sizes: Sizes, repeat: int) -> Any:
    return lambda group: fresh_image(sizes, 10_000_000 + 1000 * repeat + group)


def _learner(sizes: Sizes, config: Config, device: torch.device, *, compiled: bool) -> TorchLearner:
    policy = make_model(sizes, device, torch.float32)
    freeze_vision(policy, config.model.train_vision)
    if compiled:
        compile_layers(policy.get_decoder())  # type: ignore[operator]
    return grpo_learner(policy, make_compute(config, policy))


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Measure, print and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the script")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--repeats", type=int, default=3, help="repeats after one that warms up (default: 3)")
    parser.add_argument("--only", nargs="+", choices=("rollout", "update"), default=["rollout", "update"])
    parser.add_argument("--json", type=Path, help="where to write the rows")
    chosen = parser.parse_args(arguments)
    sizes, device = TINY if chosen.tiny else FULL, choose_device(chosen.device)
    measures = {"rollout": rollout_rows, "update": update_rows}
    rows: list[dict[str, Any]] = []
    for kind in chosen.only:
        for row in measures[kind](sizes, device, chosen.repeats, compiled=device.type == "cuda"):
            rows.append(row)
            print(
                row["kind"], row["case"], *(f"{name}={value:.4g}" for name, value in row["figures"].items()), sep="  "
            )
            if chosen.json is not None:
                write_atomically(chosen.json, json.dumps(rows, indent=2))
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return rows


if __name__ == "__main__":
    main()
