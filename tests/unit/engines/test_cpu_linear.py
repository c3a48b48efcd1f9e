"""Linear layers of the engine on CPU: the plain product, and a row that does not know its company."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from agent_r1.engines.local.cpu.linear import BatchInvariantLinear, batch_invariant_linear, use_batch_invariant_products

ROWS = (16, 32, 48, 64, 128, 192, 208, 1024)
WIDE = (1536, 576)
"""Inputs and outputs of SmolLM2-135M's down projection: with two threads a plain product of 64 rows sums otherwise than
one of 16."""


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Libraries split sums between threads, so one thread would prove nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def random_product(inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
    """1,024 rows and a matrix."""
    generator = torch.Generator().manual_seed(inputs)
    return torch.randn(1024, inputs, generator=generator), torch.randn(outputs, inputs, generator=generator)


@pytest.mark.parametrize(("inputs", "outputs"), [WIDE, (2000, 64), (769, 960), (64, 16), (576, 4096)])
def test_a_row_is_the_same_bit_for_bit_however_many_others_there_are(inputs: int, outputs: int) -> None:
    rows, weight = random_product(inputs, outputs)
    alone = batch_invariant_linear(rows[:16], weight)
    different = [count for count in ROWS if not torch.equal(batch_invariant_linear(rows[:count], weight)[:16], alone)]
    assert different == []


@pytest.mark.parametrize("count", [16, 63, 64, 200])
@pytest.mark.parametrize("with_bias", [False, True])
def test_it_is_the_plain_product(count: int, with_bias: bool) -> None:
    rows, weight = random_product(*WIDE)
    bias = weight[:, 0].clone() if with_bias else None
    found = batch_invariant_linear(rows[None, :count], weight, bias)
    exact = nn.functional.linear(rows[None, :count].double(), weight.double(), None if bias is None else bias.double())
    assert found.shape == (1, count, WIDE[1])
    assert found.is_contiguous()
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-3)


def test_layers_keep_their_parameters_their_names_and_their_ties() -> None:
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=1,  # keys and values of 8 outputs: too narrow to be replaced
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    before = dict(model.state_dict(keep_vars=True))
    use_batch_invariant_products(model)
    after = model.state_dict(keep_vars=True)
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    layer = model.model.layers[0]
    assert isinstance(layer.mlp.down_proj, BatchInvariantLinear)
    assert isinstance(model.lm_head, BatchInvariantLinear)
    assert type(layer.self_attn.k_proj) is nn.Linear
