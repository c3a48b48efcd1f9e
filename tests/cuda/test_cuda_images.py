"""Images on a GPU: prompts without graphs, bursts behind images, and updates agree with the plain model."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
import torch

from agent_r1.engines.local import LocalEngine
from agent_r1.learner.compute import Compute
from agent_r1.learner.packing import TRIE_ATTENTION, Sample, pack_tries
from agent_r1.learner.scoring import score_samples
from agent_r1.models import set_attention
from agent_r1.types import Completion, SamplingParams, TokenIds
from tests.helpers.vision_models import FAMILIES, make_image, make_vlm, plain_logprobs

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32:UserWarning"),
]


def ask(engine: LocalEngine, *prompts: TokenIds) -> list[Completion]:
    async def answers() -> list[Completion]:
        sampling = [SamplingParams(max_tokens=40, seed=number) for number in range(len(prompts))]
        return await asyncio.gather(*map(engine.generate, prompts, sampling))

    return asyncio.run(answers())


def assert_plain(model: Any, prompt: TokenIds, completion: Completion) -> None:
    whole = prompt + completion.token_ids
    expected = plain_logprobs(model, whole, range(len(prompt), len(whole))).cpu()
    torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_bursts_behind_images_say_what_the_plain_model_says(family: str, compiled: bool) -> None:
    model = make_vlm(family, width=128).cuda()
    first, second = make_image(family, 1), make_image(family, 2, size=5)
    engine = LocalEngine(model, kv_memory=8192, compile_layers=compiled)
    prompts = [
        (5, 6, *first.token_ids, 7),
        (5, 6, *first.token_ids, 8, *second.token_ids, *range(9, 30)),
        tuple(range(5, 40)),
        (5, *second.token_ids),  # its last token is an image token
    ]
    for _ in range(2):  # the second time prefixes are found
        completions = ask(engine, *prompts)
        for prompt, completion in zip(prompts, completions, strict=True):
            assert_plain(model, prompt, completion)
        prompts = [
            (*prompt, *completion.token_ids, 20, *first.token_ids, 21)
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
    assert engine.stats.encoded_images == 2


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_of_tries_are_those_of_the_plain_model(family: str) -> None:
    model = make_vlm(family, width=128).cuda()
    first, second = make_image(family, 1), make_image(family, 2, size=5)
    prompt = (5, 6, *first.token_ids, 7)
    samples = [
        Sample.of_step(prompt, (8, 9)),
        Sample.of_step((*prompt, 8, 9, *second.token_ids, 10), (11, 12)),
        Sample.of_step((5, 6, *second.token_ids, 7), (8,)),
    ]
    expected = torch.cat([plain_logprobs(model, sample.token_ids, sample.action_positions) for sample in samples])
    set_attention(model, TRIE_ATTENTION)
    compute = Compute(device=torch.device("cuda"), pack=partial(pack_tries, max_tokens=512, width_multiple=128))
    torch.testing.assert_close(score_samples(model, samples, compute), expected.cpu(), atol=1e-3, rtol=0)
