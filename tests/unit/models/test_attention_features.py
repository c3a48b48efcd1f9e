"""Every feature of a model's attention is applied, in trainer and engine, or the model is refused by name."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import Gemma2Config, Gemma2ForCausalLM, PreTrainedModel

from agent_r1.engines.local import LocalEngine
from agent_r1.errors import ConfigError, EngineError
from agent_r1.learner.compute import Compute
from agent_r1.learner.packing.samples import Packer, Sample, pack
from agent_r1.learner.packing.trie import pack_tries
from agent_r1.learner.packing.trie_attention import TRIE_ATTENTION
from agent_r1.learner.scoring import score_micro_batch, score_samples
from agent_r1.models.attention_features import check_attention, layer_windows, refuse_features
from agent_r1.models.lm_head import check_head
from agent_r1.models.load import load_policy
from agent_r1.types import SamplingParams, TokenIds
from tests.unit.engines.test_engine_architectures import (
    ARCHITECTURES,
    MIXED,
    SHAPE,
    plain_logits,
    plain_logprobs,
    random_prompt,
)

CPU = torch.device("cpu")
PACKINGS: dict[str, Packer] = {
    "rows": partial(pack, max_tokens=4096),
    "trie": partial(pack_tries, max_tokens=4096, row_tokens=512),
}


def of_family(family: str, **settings: Any) -> Callable[[int], PreTrainedModel]:
    """A tiny model of a family; a `sliding_window` of True takes the window that is asked for."""

    def make(window: int) -> PreTrainedModel:
        windowed = {"sliding_window": window} if settings.get("sliding_window") else {}
        config = getattr(transformers, f"{family}Config")(**SHAPE | settings | windowed)
        model: PreTrainedModel = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(config)
        return model

    return make


FAMILIES: dict[str, Callable[[int], PreTrainedModel]] = ARCHITECTURES | {
    "cohere": of_family("Cohere", logit_scale=0.5),
    "cohere2, one layer with a window": of_family("Cohere2", sliding_window=True, layer_types=MIXED),
    "exaone4, one layer with a window": of_family("Exaone4", sliding_window=True, layer_types=MIXED),
    "gemma": of_family("Gemma", head_dim=8),
    "granite": of_family("Granite", attention_multiplier=0.3, logits_scaling=2.0, residual_multiplier=0.5),
    "mixtral with a window": of_family("Mixtral", sliding_window=True, num_local_experts=4),
    "olmo2": of_family("Olmo2"),
    "olmo3, one layer with a window": of_family("Olmo3", sliding_window=True, layer_types=MIXED),
    "phi3": of_family("Phi3"),
    "phi3 with a window": of_family("Phi3", sliding_window=True),
    "qwen3 moe": of_family("Qwen3Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=8),
    "smollm3": of_family("SmolLM3"),
    "starcoder2 with a window": of_family("Starcoder2", sliding_window=True),
    "vaultgemma, scores capped, one layer with a window": of_family(
        "VaultGemma", head_dim=8, sliding_window=True, layer_types=MIXED, attn_logit_softcapping=2.0
    ),
}


def built(family: str, window: int = 8) -> PreTrainedModel:
    """With plain attention code, which applies everything."""
    torch.manual_seed(0)
    model = FAMILIES[family](window).eval()
    with torch.no_grad():  # some families start from weights so small that attention hardly matters
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, 0.4)
    model.set_attn_implementation("eager")
    return model


def as_trained(model: PreTrainedModel) -> PreTrainedModel:
    own = copy.deepcopy(model)
    own.set_attn_implementation(TRIE_ATTENTION)
    return own


def ragged_samples() -> list[Sample]:
    """Steps of different lengths, of which some share a beginning longer than the window."""
    rng = random.Random(5)
    shared = tuple(rng.choices(range(50), k=20))
    rows = [shared + tuple(rng.choices(range(50), k=length)) for length in (3, 11, 25)]
    rows += [tuple(rng.choices(range(50), k=length)) for length in (4, 30)]
    return [Sample(token_ids=row, action_positions=tuple(range(1, len(row), 2))) for row in rows]


def plain_scores(model: PreTrainedModel, samples: list[Sample]) -> Tensor:
    found = []
    for sample in samples:
        ids, places = torch.tensor(sample.token_ids), torch.tensor(sample.action_positions)
        logprobs = model(input_ids=ids[None], use_cache=False).logits[0].float().log_softmax(-1)
        found.append(logprobs[places - 1, ids[places]])
    return torch.cat(found)


# --- the trainer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_trainers_log_probs_equal_those_of_plain_eager_attention(family: str, packing: str) -> None:
    model, samples = built(family), ragged_samples()
    compute = Compute(device=CPU, pack=PACKINGS[packing])
    with torch.no_grad():
        expected = plain_scores(model, samples)
    torch.testing.assert_close(score_samples(as_trained(model), samples, compute), expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_cap_on_scores_has_the_gradient_of_plain_eager_attention(packing: str) -> None:
    model, samples = built("gemma2, scores capped, one layer with a window"), ragged_samples()
    own = as_trained(model)
    plain_scores(model, samples).sum().backward()  # type: ignore[no-untyped-call]
    compute = Compute(device=CPU, pack=PACKINGS[packing])
    for batch in compute.pack(samples, range(len(samples))):
        score_micro_batch(own, batch, compute).logprobs_N.sum().backward()  # type: ignore[no-untyped-call]
    for (name, one), other in zip(own.named_parameters(), model.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(one.grad, other.grad, atol=2e-3, rtol=2e-3, msg=name)


def test_a_row_without_padding_is_capped_too() -> None:
    """Without padding `transformers` makes no mask at all and leaves causality to the attention function."""
    model = built("gemma2, scores capped, one layer with a window", window=128)
    ids = random_prompt(1, 45)
    torch.testing.assert_close(plain_logits(as_trained(model), ids), plain_logits(model, ids), atol=1e-4, rtol=1e-4)


@pytest.mark.whole
def test_capped_layers_compile_into_one_graph() -> None:
    model = as_trained(built("gemma2, scores capped, one layer with a window", window=128))
    ids = random_prompt(1, 24)
    expected = plain_logits(model, ids)
    torch.compiler.reset()
    for layer in model.model.layers:
        layer.compile(backend="eager", fullgraph=True)
    torch.testing.assert_close(plain_logits(model, ids), expected, atol=1e-4, rtol=1e-4)


# --- the engine -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - set(ARCHITECTURES)))
def test_the_engines_log_probs_equal_those_of_plain_eager_attention(family: str) -> None:
    model, prompt = built(family), random_prompt(2, 33)

    async def answer() -> Any:
        engine = LocalEngine(model, prefill_tokens=16)
        return await engine.generate(prompt, SamplingParams(max_tokens=12, seed=3))

    completion = asyncio.run(answer())
    assert completion.logprobs == pytest.approx(plain_logprobs(model, prompt, completion), abs=2e-4)


@pytest.mark.parametrize("family", sorted(name for name in FAMILIES if "window" in name))
def test_windows_matter_to_these_models(family: str) -> None:
    """Otherwise the tests above would pass without windows."""
    prompt: TokenIds = random_prompt(1, 45)
    difference = plain_logits(built(family, 8), prompt) - plain_logits(built(family, 128), prompt)
    assert float(difference.abs().max()) > 0.01


@pytest.mark.parametrize(
    ("family", "windows"),
    [
        ("llama", [None, None]),
        ("mistral with a window", [8, 8]),
        ("qwen2, one layer with a window", [None, 8]),
        ("gemma3, one layer with a window", [8, None]),
    ],
)
def test_windows_are_told_layer_by_layer(family: str, windows: list[int | None]) -> None:
    assert layer_windows(built(family).config) == windows


# --- refusals ---------------------------------------------------------------------------------------------------------


def gpt_oss() -> PreTrainedModel:
    return of_family("GptOss", head_dim=8, num_local_experts=4, sliding_window=True, layer_types=MIXED)(8).eval()


def bidirectional_gemma3() -> PreTrainedModel:
    return of_family("Gemma3Text", head_dim=8, layer_types=["full_attention"] * 2, use_bidirectional_attention=True)(8)


def blind_mistral() -> PreTrainedModel:
    """Its configuration has a window that its layers are not told of."""
    model = of_family("Llama")(8)
    model.config.sliding_window = 8
    return model


def phi3_by_length() -> PreTrainedModel:
    factors = {"rope_type": "longrope", "short_factor": [1.0, 1.0], "long_factor": [2.0, 2.0], "rope_theta": 1e4}
    return of_family("Phi3", rope_parameters=factors, original_max_position_embeddings=64)(8)


def few_experts() -> PreTrainedModel:
    """It chooses four of two experts."""
    return of_family("Mixtral", num_local_experts=2, num_experts_per_tok=4)(8)


REFUSED: dict[str, tuple[Callable[[], PreTrainedModel], str]] = {
    "sinks": (gpt_oss, r"(?s)GptOssForCausalLM cannot be used.*Choose a model.*it uses attention sinks \(s_aux\)"),
    "later tokens": (bidirectional_gemma3, r"(?s)Gemma3ForCausalLM.*attention to later tokens \(is_causal\)"),
    "an unheard window": (blind_mistral, r"layer 0 attends within sliding_window=None, and its configuration says 8"),
    "broken": (few_experts, r"MixtralForCausalLM cannot compute two tokens \(RuntimeError: selected index k"),
    "own attention": (lambda: of_family("Bloom")(8), r"BloomForCausalLM(?s:.*)does not let its attention be replaced"),
    "rope by length": (phi3_by_length, r"rotary embeddings of type \['longrope'\]"),
}


@pytest.mark.filterwarnings("ignore")  # of transformers, about tiny configurations
@pytest.mark.parametrize("case", REFUSED)
def test_a_model_with_a_feature_that_is_not_applied_is_refused_by_name(case: str, tmp_path: Path) -> None:
    make, message = REFUSED[case]
    model = make()
    with pytest.raises(EngineError, match=message):
        LocalEngine(model, context_length=64)
    if case != "an unheard window":  # that one does not survive its folder
        model.save_pretrained(tmp_path)
        with pytest.raises(ConfigError, match=message):
            load_policy(str(tmp_path), dtype="float32", device=CPU, attention=TRIE_ATTENTION)


@pytest.mark.parametrize("family", FAMILIES)
def test_models_that_are_checked_keep_their_attention(family: str) -> None:
    model = built(family)
    check_attention(model)
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"s_aux": torch.zeros(4)}, r"Linear uses attention sinks \(s_aux\), which is not applied"),
        ({"position_bias": torch.zeros(4)}, r"a bias by position \(position_bias\)"),
        ({"head_mask": torch.ones(4), "tilt": 2}, r"a mask over heads \(head_mask\), tilt"),
        ({"dropout": 0.1}, "dropout"),
        ({"is_causal": False}, r"attention to later tokens \(is_causal\)"),
    ],
    ids=str,
)
def test_a_call_with_a_feature_that_is_not_applied_is_refused(features: dict[str, Any], message: str) -> None:
    layer = torch.nn.Linear(1, 1)
    with pytest.raises(EngineError, match=message):
        refuse_features(layer, features)
    harmless = {"scaling": 0.1, "softcap": 30.0, "sliding_window": 8, "dropout": 0.0, "is_causal": True, "s_aux": None}
    refuse_features(layer, harmless | {"position_ids": torch.zeros(3), "use_cache": False})


def test_a_folder_with_capped_scores_is_loaded_with_its_cap(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = Gemma2Config(**SHAPE, head_dim=8, sliding_window=8, layer_types=MIXED, attn_logit_softcapping=2.0)
    model = Gemma2ForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    model.set_attn_implementation("eager")
    policy = load_policy(str(tmp_path), dtype="float32", device=CPU, attention=TRIE_ATTENTION)
    ids = random_prompt(1, 45)
    torch.testing.assert_close(plain_logits(policy, ids), plain_logits(model, ids), atol=1e-4, rtol=1e-4)  # type: ignore[arg-type]


# --- the output layer -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_logits_of_every_family_are_made_as_the_model_makes_them(family: str, dtype: torch.dtype) -> None:
    check_head(as_trained(built(family)).to(dtype))


def test_a_model_that_scales_its_logits_in_an_unknown_way_is_refused() -> None:
    model = as_trained(built("llama"))
    plain = model.lm_head.forward
    model.config.logits_scaling = 4.0  # the model does not know this key; Granite, which does, would divide by it
    with pytest.raises(EngineError, match="LlamaForCausalLM changes its logits after the output layer"):
        check_head(model)
    model.lm_head.forward = lambda hidden: plain(hidden) / 4.0
    check_head(model)
