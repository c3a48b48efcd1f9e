"""Every kind of dense decoder says in the engine what the plain model says, chunked prompts and windows included."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agent_r1.engines.local import LocalEngine
from agent_r1.engines.local.request import Request
from agent_r1.engines.local.runner import ModelRunner
from agent_r1.engines.local.scheduler import Scheduler
from agent_r1.errors import EngineError
from agent_r1.models.fused_projections import fuse_projections
from agent_r1.types import Completion, SamplingParams, TokenIds

SHAPE: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.4,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
MIXED = ["sliding_attention", "full_attention"]
ARCHITECTURES: dict[str, Callable[[int], PreTrainedModel]] = {
    "llama": lambda window: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "llama, every head its own keys": lambda window: LlamaForCausalLM(
        LlamaConfig(**SHAPE | {"num_key_value_heads": 4})
    ),
    "llama, nine heads on one key head": lambda window: LlamaForCausalLM(
        LlamaConfig(**SHAPE | {"hidden_size": 36, "num_attention_heads": 9, "num_key_value_heads": 1})
    ),
    "qwen2": lambda window: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "qwen2, one layer with a window": lambda window: Qwen2ForCausalLM(
        Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=window, max_window_layers=1)
    ),
    "qwen3": lambda window: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=8)),
    "gemma3, one layer with a window": lambda window: Gemma3ForCausalLM(
        Gemma3TextConfig(**SHAPE, head_dim=8, sliding_window=window, layer_types=MIXED)
    ),
    "mistral": lambda window: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=None)),
    "mistral with a window": lambda window: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=window)),
    # Plain attention code applies Gemma 2's cap on the scores in eager mode alone.
    "gemma2, scores capped, one layer with a window": lambda window: Gemma2ForCausalLM(
        Gemma2Config(
            **{**SHAPE, "attn_implementation": "eager"},
            head_dim=8,
            sliding_window=window,
            layer_types=MIXED,
            attn_logit_softcapping=2.0,
        )
    ),
}


def built(architecture: str, window: int = 8) -> PreTrainedModel:
    torch.manual_seed(0)
    return ARCHITECTURES[architecture](window).eval()


def random_prompt(seed: int, length: int) -> TokenIds:
    return tuple(random.Random(seed).choices(range(50), k=length))


def plain_logits(model: PreTrainedModel, token_ids: TokenIds) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0]
    return logits


def plain_logprobs(model: PreTrainedModel, prompt: TokenIds, completion: Completion) -> list[float]:
    logits = plain_logits(model, prompt + completion.token_ids)[len(prompt) - 1 : -1]
    found: list[float] = (
        logits.log_softmax(-1).gather(1, torch.tensor(completion.token_ids)[:, None]).flatten().tolist()
    )
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("prefill_tokens", [8192, 16, 7])
def test_logits_equal_the_plain_model_wherever_the_prompt_is_cut(architecture: str, prefill_tokens: int) -> None:
    model, prompt = built(architecture), random_prompt(1, 45)
    runner = ModelRunner(model, max_requests=2, context_length=128, kv_memory=128)
    scheduler = Scheduler(num_blocks=runner.num_blocks, max_requests=2, prefill_tokens=prefill_tokens)
    request = Request(prompt=prompt, sampling=SamplingParams(max_tokens=2))
    scheduler.add(request)
    with torch.inference_mode():
        while request.num_remaining:
            chunks = scheduler.schedule()
            logits = runner.forward(chunks)
            scheduler.mark_computed(chunks)
    torch.testing.assert_close(logits[0], plain_logits(model, prompt)[-1], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_fused_projections_change_no_logit_and_take_weights_by_their_old_names(architecture: str) -> None:
    model, ids = built(architecture), random_prompt(1, 20)
    fused = copy.deepcopy(model)
    num_layers = model.config.get_text_config().num_hidden_layers
    assert fuse_projections(fused) == 2 * num_layers
    torch.testing.assert_close(plain_logits(fused, ids), plain_logits(model, ids), atol=2e-5, rtol=1e-5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    assert fused.state_dict().keys() == model.state_dict().keys()
    fused.load_state_dict(model.state_dict())
    torch.testing.assert_close(plain_logits(fused, ids), plain_logits(model, ids), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logprobs_of_ragged_requests_and_later_turns_equal_the_plain_model(architecture: str) -> None:
    model = built(architecture)

    async def two_turns() -> list[tuple[TokenIds, Completion]]:
        engine = LocalEngine(model, prefill_tokens=40)

        async def episode(index: int) -> list[tuple[TokenIds, Completion]]:
            prompt = random_prompt(index // 2, 3 + 11 * (index // 2))
            first = await engine.generate(prompt, SamplingParams(max_tokens=4 + 3 * index, seed=index))
            following = prompt + first.token_ids + random_prompt(index, 5)
            second = await engine.generate(following, SamplingParams(max_tokens=9, seed=index))
            return [(prompt, first), (following, second)]

        episodes = await asyncio.gather(*(episode(index) for index in range(8)))
        assert engine.stats.prefix_tokens > 0
        return [turn for turns in episodes for turn in turns]

    for prompt, completion in asyncio.run(two_turns()):
        assert completion.logprobs == pytest.approx(plain_logprobs(model, prompt, completion), abs=1e-4)


@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if "window" in name])
def test_a_window_changes_what_these_models_say(architecture: str) -> None:
    """Otherwise the tests above would pass without windows."""
    prompt = random_prompt(1, 45)
    narrow = plain_logits(built(architecture, window=8), prompt)
    wide = plain_logits(built(architecture, window=128), prompt)
    assert float((narrow - wide).abs().max()) > 0.01


def test_a_cap_on_scores_changes_what_the_model_says() -> None:
    model, prompt = built("gemma2, scores capped, one layer with a window"), random_prompt(1, 45)
    capped = plain_logits(model, prompt)
    for layer in model.model.layers:
        layer.self_attn.attn_logit_softcapping = None
    assert float((plain_logits(model, prompt) - capped).abs().max()) > 0.01


def test_the_trainers_model_keeps_its_attention_and_its_type() -> None:
    model = built("qwen3")
    before = model.config._attn_implementation
    engine = LocalEngine(model, dtype=torch.bfloat16)
    completion = asyncio.run(engine.generate(random_prompt(1, 20), SamplingParams(max_tokens=10, seed=3)))
    assert model.config._attn_implementation == before
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert completion.logprobs == pytest.approx(plain_logprobs(model, random_prompt(1, 20), completion), abs=0.3)


def test_a_model_with_layers_of_another_kind_is_refused_by_name() -> None:
    config = Qwen3Config(**SHAPE, layer_types=["full_attention", "sliding_attention"], sliding_window=8)
    model = Qwen3ForCausalLM(config)
    model.config.layer_types = ["full_attention", "chunked_attention"]
    with pytest.raises(EngineError, match=r"Qwen3ForCausalLM(?s:.*)layers of type \['chunked_attention'\]"):
        LocalEngine(model)
