"""Projections of one input as one product: the same numbers, gradients and names as the layers they stand for."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from agent_r1.models.fused_projections import fuse_projections

SHAPE: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
# Qwen2 has biases on queries, keys and values.
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
}


def made(name: str) -> Any:
    torch.manual_seed(0)
    model = MODELS[name]()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def loss_of(model: Any) -> Tensor:
    token_ids = torch.arange(24).view(2, 12)
    loss: Tensor = model(input_ids=token_ids, labels=token_ids, use_cache=False).loss
    return loss


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_fused_model_says_what_the_plain_one_says_and_keeps_its_names(name: str, trained: bool) -> None:
    plain = made(name)
    fused = copy.deepcopy(plain)
    assert fuse_projections(fused, trained=trained) == 4  # two a layer
    assert fuse_projections(fused, trained=trained) == 0, "fused once more"
    torch.testing.assert_close(loss_of(fused), loss_of(plain))
    assert list(fused.state_dict()) == list(plain.state_dict())
    for name_of, tensor in plain.state_dict().items():
        assert torch.equal(fused.state_dict()[name_of], tensor)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_go_to_the_parameters_that_were_there(name: str) -> None:
    plain = made(name)
    fused = copy.deepcopy(plain)
    before = dict(fused.named_parameters())
    fuse_projections(fused, trained=True)
    assert all(parameter is before[name_of] for name_of, parameter in fused.named_parameters())
    loss_of(plain).backward()
    loss_of(fused).backward()
    for name_of, parameter in plain.named_parameters():
        torch.testing.assert_close(before[name_of].grad, parameter.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("trained", [False, True])
def test_new_weights_are_used_at_once(trained: bool) -> None:
    plain, other = made("qwen2"), made("qwen2")
    for parameter in other.parameters():
        nn.init.normal_(parameter, std=0.2)
    fuse_projections(plain, trained=trained)
    loss_of(plain)
    plain.load_state_dict(other.state_dict())
    torch.testing.assert_close(loss_of(plain), loss_of(other))


def test_a_copy_of_a_fused_model_has_weights_of_its_own() -> None:
    fused = made("llama")
    fuse_projections(fused, trained=True)
    before, twin = loss_of(fused), copy.deepcopy(fused)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(1.5)
    assert torch.equal(loss_of(fused), before)
    assert not torch.equal(loss_of(twin), before)


def test_layers_that_are_not_plain_are_left_as_they_are() -> None:
    class Doubled(nn.Linear):
        def forward(self, hidden: Tensor) -> Tensor:
            return 2 * super().forward(hidden)

    model = made("llama")
    for layer in model.model.layers:
        layer.mlp.up_proj = Doubled(32, 48, bias=False)
    before = loss_of(model)
    assert fuse_projections(model) == 2, "queries, keys and values of two layers"
    torch.testing.assert_close(loss_of(model), before)


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # the compiler looks whether there is one
def test_all_layers_of_a_compiled_model_share_one_piece_of_code() -> None:
    model = made("llama")
    plain = loss_of(model)
    fuse_projections(model, trained=True)
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    for layer in model.model.layers:
        layer.compile(backend="aot_eager")
    loss = loss_of(model)
    loss.backward()
    torch.testing.assert_close(loss, plain)
    counted = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert counted == 1, f"{counted} graphs for two layers"
