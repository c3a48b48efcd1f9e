"""The engine on a GPU: graphs, bursts and compiled layers must answer what the plain model answers.

Log-probs are compared with one forward pass over all tokens; draws themselves are compared with the CPU's in
test_sampling_kernels.py.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agent_r1.config import LoraConfig
from agent_r1.engines.local import LocalEngine
from agent_r1.models.lora import add_adapters, find_targets, merged_weights
from agent_r1.types import Completion, SamplingParams, TokenIds

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # Compilers deprecate things among themselves, and advise TF32.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32:UserWarning"),
]

Prompt = tuple[TokenIds, SamplingParams]
SHAPE: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SHAPE)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SHAPE)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SHAPE, head_dim=32)),
    "mistral": (MistralForCausalLM, MistralConfig(**SHAPE, sliding_window=24)),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig(**SHAPE, head_dim=32, sliding_window=16, query_pre_attn_scalar=32)),
}


def make_model(family: str = "llama", dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    make, config = FAMILIES[family]
    return make(config).to("cuda", dtype).eval()


def ids(seed: int, length: int) -> TokenIds:
    return tuple(random.Random(seed).choices(range(300), k=length))


def requests(count: int, **sampling: Any) -> list[Prompt]:
    return [
        (ids(index, 1 + index * 17 % 150), SamplingParams(max_tokens=1 + index * 5 % 60, seed=index, **sampling))
        for index in range(count)
    ]


def plain_engine(model: Any, **settings: Any) -> LocalEngine:
    """Graphs and bursts without the compiler, which takes longer than these tests."""
    return LocalEngine(model, compile_layers=False, **settings)


async def all_answers(engine: LocalEngine, prompts: Sequence[Prompt]) -> list[Completion]:
    return list(await asyncio.gather(*(engine.generate(*prompt) for prompt in prompts)))


def answers(engine: LocalEngine, prompts: Sequence[Prompt]) -> list[Completion]:
    return asyncio.run(all_answers(engine, prompts))


def plain_logprobs(model: Any, prompt: TokenIds, completion: Completion, temperature: float = 1.0) -> list[float]:
    tokens = torch.tensor([prompt + completion.token_ids], device="cuda")
    with torch.no_grad():
        logits = model(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(1, tokens[0, len(prompt) :, None]).squeeze(1).tolist()


def worst_difference(model: Any, prompts: Sequence[Prompt], completions: Sequence[Completion]) -> float:
    differences = [
        abs(found - expected)
        for (prompt, sampling), completion in zip(prompts, completions, strict=True)
        for found, expected in zip(
            completion.logprobs,
            plain_logprobs(model, prompt, completion, sampling.temperature or 1.0),
            strict=True,
        )
    ]
    return max(differences)


@pytest.mark.parametrize("compile_layers", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_of_ragged_requests_equal_plain_forward_passes(family: str, compile_layers: bool) -> None:
    model, prompts = make_model(family), requests(40, temperature=0.8)
    engine = LocalEngine(model, max_requests=32, prefill_tokens=256, compile_layers=compile_layers)
    completions = answers(engine, prompts)
    assert [len(c.token_ids) for c in completions] == [sampling.max_tokens for _, sampling in prompts]
    assert worst_difference(model, prompts, completions) < 2e-3  # float32 with the tensor cores off on both sides


def test_bfloat16_log_probs_are_as_near_the_float32_ones_as_those_of_a_plain_bfloat16_model() -> None:
    model, prompts = make_model(), requests(24)
    model.load_state_dict({name: tensor.bfloat16().float() for name, tensor in model.state_dict().items()})
    completions = answers(LocalEngine(model, dtype=torch.bfloat16), prompts)
    rounded = make_model(dtype=torch.bfloat16)

    def mean_difference(logprobs: list[list[float]]) -> float:
        exact = [plain_logprobs(model, prompt, c) for (prompt, _), c in zip(prompts, completions, strict=True)]
        differences = (
            torch.tensor([*chain.from_iterable(logprobs)]) - torch.tensor([*chain.from_iterable(exact)])
        ).abs()
        return float(differences.mean())

    ours = mean_difference([list(completion.logprobs) for completion in completions])
    plain = mean_difference([plain_logprobs(rounded, p, c) for (p, _), c in zip(prompts, completions, strict=True)])
    assert ours < 1.2 * plain


def test_greedy_answers_take_the_plain_models_most_likely_token() -> None:
    model = make_model()
    prompts = [(ids(index, 20 + index), SamplingParams(max_tokens=30, temperature=0.0)) for index in range(6)]
    for (prompt, _), completion in zip(prompts, answers(plain_engine(model), prompts), strict=True):
        tokens = torch.tensor([prompt + completion.token_ids], device="cuda")
        with torch.no_grad():
            logits = model(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 : -1]
        chosen = logits.gather(1, tokens[0, len(prompt) :, None]).squeeze(1)
        assert float((logits.amax(-1) - chosen).max()) < 1e-3  # equals up to rounding may change places


def test_an_answer_ends_at_its_stop_in_the_middle_of_a_burst() -> None:
    model, (prompt, sampling) = make_model(), requests(12)[11]
    engine = plain_engine(model)
    whole = answers(engine, [(prompt, sampling)])[0]
    for place in (0, 2, 7, 8, 9, 20):
        stop = whole.token_ids[place]
        first = whole.token_ids.index(stop)
        cut = answers(engine, [(prompt, replace(sampling, stop=(stop,)))])[0]
        assert cut.token_ids == whole.token_ids[: first + 1]
        assert cut.finish_reason == "stop"


def test_a_later_turn_finds_the_earlier_one_in_the_cache_and_reads_it_right() -> None:
    model = make_model()
    engine = plain_engine(model)
    prompt, sampling = ids(1, 100), SamplingParams(max_tokens=45, seed=3)
    first = answers(engine, [(prompt, sampling)])[0]
    longer = (*prompt, *first.token_ids, *ids(2, 10))
    before = engine.stats.prefix_tokens
    second = answers(engine, [(longer, sampling)])[0]
    assert engine.stats.prefix_tokens - before >= 128
    assert worst_difference(model, [(longer, sampling)], [second]) < 2e-3


def test_captured_graphs_are_counted_once_with_the_seconds_that_they_took() -> None:
    engine = plain_engine(make_model())
    answers(engine, requests(4))
    metrics = engine.metrics()
    assert metrics["perf/captured_graphs"] >= 1
    assert metrics["time/capture"] > 0
    answers(engine, requests(4))  # decodes with the graphs that are there
    assert engine.metrics()["perf/captured_graphs"] < metrics["perf/captured_graphs"]


def test_a_small_pool_makes_requests_wait_and_start_again_but_not_fail() -> None:
    model, prompts = make_model(), requests(40)
    engine = plain_engine(model, max_requests=32, kv_memory=512)
    completions = answers(engine, prompts)
    assert engine.stats.preemptions > 0
    assert worst_difference(model, prompts, completions) < 2e-3


def test_new_weights_are_read_by_graphs_that_were_captured_before() -> None:
    model, prompts = make_model(), requests(10)
    engine = LocalEngine(model)
    answers(engine, prompts)
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    asyncio.run(engine.update_weights(model.state_dict().items(), 1))
    completions = answers(engine, prompts)
    assert worst_difference(model, prompts, completions) < 2e-3
    assert all(set(completion.policy_versions) == {1} for completion in completions)


@pytest.mark.parametrize("targets", [("all-linear",), ("q_proj", "v_proj", "down_proj")], ids=str)
@pytest.mark.parametrize("compile_layers", [False, True])
def test_adapters_beside_the_weights_are_read_by_graphs_that_were_captured_before(
    targets: tuple[str, ...], compile_layers: bool
) -> None:
    pytest.importorskip("peft")
    model, prompts = make_model(), requests(10)
    own = copy.deepcopy(model)
    add_adapters(own, LoraConfig(rank=4, targets=list(targets)), seed=0)
    ranks = dict.fromkeys(find_targets(model, targets), 4)
    engine = LocalEngine(model, compile_layers=compile_layers, adapters=ranks)
    before = answers(engine, prompts)
    assert worst_difference(model, prompts, before) < 2e-3
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in own.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    asyncio.run(engine.update_weights(merged_weights(own, apart=engine.adapters), 1))
    after = answers(engine, prompts)
    assert worst_difference(own, prompts, after) < 2e-3
    assert [c.token_ids for c in after] != [c.token_ids for c in before]


def test_top_k_and_top_p_hold_in_bursts() -> None:
    model = make_model()
    engine = plain_engine(model)
    prompts = [(ids(index, 30), SamplingParams(max_tokens=20, seed=index, top_k=1)) for index in range(4)]
    greedy = [(prompt, replace(sampling, temperature=0.0, top_k=0)) for prompt, sampling in prompts]
    found, expected = answers(engine, prompts), answers(engine, greedy)
    assert [c.token_ids for c in found] == [c.token_ids for c in expected]


def test_the_same_requests_get_the_same_answers() -> None:
    model, prompts = make_model(), requests(30)
    assert answers(plain_engine(model), prompts) == answers(plain_engine(model), prompts)


def test_a_cancelled_request_frees_its_blocks() -> None:
    model = make_model()
    engine = plain_engine(model)

    async def cancel_half() -> None:
        tasks = [asyncio.create_task(engine.generate(*prompt)) for prompt in requests(20)]
        await asyncio.sleep(0.02)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await engine.generate(*requests(1)[0])

    asyncio.run(cancel_half())
    scheduler = engine._scheduler
    scheduler.cache.clear()
    assert scheduler.pool.num_held == 0
