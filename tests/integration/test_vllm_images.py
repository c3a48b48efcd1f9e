"""A real vLLM server that reads images, on a CPU. `make test-vllm` runs these tests.

The model is a tiny random Idefics3: the processor of the build for CPUs loads it without torchvision, which it does not
for SmolVLM (its processor of videos needs torchvision), and LLaVA and Qwen-VL models import torchvision themselves.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from agent_r1.chat import ChatRenderer, load_renderer
from agent_r1.config import load_config
from agent_r1.engines import make_engine
from agent_r1.images import Picture, read_picture
from agent_r1.learner import make_compute, score_samples
from agent_r1.learner.packing import TRIE_ATTENTION, Sample
from agent_r1.models import load_policy, merged_weights
from agent_r1.types import Completion, Observation, SamplingParams, TokenIds
from tests.helpers import tiny_vlms
from tests.helpers.vllm_server import VllmServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("VLLM_PYTHON" not in os.environ, reason="VLLM_PYTHON names no Python with vLLM: make test-vllm"),
]

CONTEXT, TOLERANCE = 1024, 1e-4
Prompts = list[TokenIds]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_vlms, "HIDDEN", 128)  # the CPU build has no attention for heads of 16 numbers
        yield tiny_vlms.make_tiny_vlm("idefics3", tmp_path_factory.mktemp("model") / "idefics3")


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    running = VllmServer(folder, tmp_path_factory.mktemp("vllm") / "server.log")
    try:
        yield running.start()
    finally:
        running.kill()


def picture(seed: int, size: tuple[int, int]) -> Picture:
    pixels = Image.frombytes("RGB", (7, 5), random.Random(seed).randbytes(105))
    return read_picture(pixels.resize(size, Image.Resampling.BICUBIC))


def asked(seed: int) -> Observation:
    """Two pictures, of sizes that are split into different numbers of tiles."""
    parts = [
        {"type": "text", "text": "Look "},
        {"type": "image", "image": picture(seed, (40 + 7 * seed, 30))},
        {"type": "text", "text": " and compare "},
        {"type": "image", "image": picture(seed + 100, (20, 50))},
    ]
    return Observation(messages=({"role": "user", "content": parts},))


class Setup:
    """The learner's policy, and what it says about completions."""

    def __init__(self, folder: Path, server: VllmServer) -> None:
        overrides = [f"model.path={folder}", "engine=vllm", f"engine.servers.urls=[{server.url}]"]
        self.config = load_config(None, [*overrides, f"rollout.context_length={CONTEXT}"])
        self.policy: Any = load_policy(str(folder), dtype="float32", device="cpu", attention=TRIE_ATTENTION)
        self.renderer: ChatRenderer = load_renderer(str(folder), "hermes")

    def run(self, work: Any) -> Any:
        async def main() -> Any:
            engine = make_engine(self.config, self.policy, CONTEXT)
            try:
                return await work(engine)
            finally:
                await engine.close()

        return asyncio.run(main())

    def scores(self, policy: Any, prompts: Prompts, completions: list[Completion]) -> list[float]:
        pairs = zip(prompts, completions, strict=True)
        samples = [Sample.of_step(prompt, done.token_ids) for prompt, done in pairs]
        scored: list[float] = score_samples(policy, samples, make_compute(self.config, policy)).tolist()
        return scored

    def difference(self, prompts: Prompts, completions: list[Completion]) -> float:
        sampled = [logprob for done in completions for logprob in done.logprobs]
        scored = self.scores(self.policy, prompts, completions)
        return max(abs(one - other) for one, other in zip(scored, sampled, strict=True))


@pytest.fixture
def setup(folder: Path, server: VllmServer) -> Setup:
    return Setup(folder, server)


async def sample(engine: Any, prompts: Prompts, stop: int, num_tokens: int = 24, **how: Any) -> list[Completion]:
    """One completion per prompt. The random model also samples the placeholder, which ends a completion here: a prompt
    that has it as text is refused."""
    return await asyncio.gather(
        *(
            engine.generate(prompt, SamplingParams(max_tokens=num_tokens, seed=seed, stop=(stop,), **how))
            for seed, prompt in enumerate(prompts)
        )
    )


def placeholder(renderer: ChatRenderer) -> int:
    assert renderer.processor is not None
    return renderer.processor.placeholder_id


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_log_probs_after_images_are_the_learners(setup: Setup, temperature: float) -> None:
    prompts = [setup.renderer.render(asked(seed)).token_ids for seed in range(6)]
    stop = placeholder(setup.renderer)
    done = setup.run(lambda engine: sample(engine, prompts, stop, temperature=temperature))
    if temperature == 0.7:
        setup.config.rollout.temperature = temperature
    assert setup.difference(prompts, done) < TOLERANCE


def test_images_that_arrive_in_later_turns_are_read_over_the_sampled_ids(setup: Setup) -> None:
    prompts = [setup.renderer.render(asked(seed)).token_ids for seed in range(4)]
    stop = placeholder(setup.renderer)

    async def turns(engine: Any) -> tuple[Prompts, list[Completion]]:
        first = await sample(engine, prompts, stop)
        later = [
            (*prompt, *(token for token in done.token_ids if token != stop), *setup.renderer.render(asked(9)).token_ids)
            for prompt, done in zip(prompts, first, strict=True)
        ]
        return later, await sample(engine, later, stop)

    later, done = setup.run(turns)
    assert setup.difference(later, done) < TOLERANCE


def test_requests_in_flight_go_over_to_new_weights_of_tower_and_language_model(setup: Setup) -> None:
    prompts = [setup.renderer.render(asked(seed)).token_ids for seed in range(4)]
    before = deepcopy(setup.policy)

    async def updated(engine: Any) -> list[Completion]:
        await sample(engine, prompts, 0, num_tokens=1)
        running = asyncio.create_task(sample(engine, prompts, 0, num_tokens=600))
        await asyncio.sleep(1)
        random_numbers = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in setup.policy.parameters():
                parameter.add_(0.05 * parameter.std() * torch.randn(parameter.shape, generator=random_numbers))
        await engine.update_weights(merged_weights(setup.policy), 1)
        return await running

    done = setup.run(updated)
    assert any(len(set(each.policy_versions)) == 2 for each in done)
    by_version = [setup.scores(policy, prompts, done) for policy in (before, setup.policy)]
    versions = [version for each in done for version in each.policy_versions]
    sampled = [logprob for each in done for logprob in each.logprobs]
    scored = [by_version[version][index] for index, version in enumerate(versions)]
    assert max(abs(one - other) for one, other in zip(scored, sampled, strict=True)) < TOLERANCE
