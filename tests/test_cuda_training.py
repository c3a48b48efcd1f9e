"""Updates on a GPU: token tries through FlexAttention give the gradient of padded rows."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from agent_r1.training.compute import Compute
from agent_r1.training.models import compile_layers
from agent_r1.training.rows import Packer, Sample, pack
from agent_r1.training.scoring import score
from agent_r1.training.trie import pack_tries
from agent_r1.training.visibility import TRIE_ATTENTION
from tests.hand_made import random_ids

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # Compilers deprecate things among themselves, and advise TF32.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32:UserWarning"),
    # They look at gradients of everything they trace.
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),
]


def small_llama(head_size: int) -> LlamaForCausalLM:
    """Four heads, two of keys."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=200,
        hidden_size=4 * head_size,
        head_dim=head_size,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
    )
    model = LlamaForCausalLM(config)
    model.set_attn_implementation(TRIE_ATTENTION)
    return model


def conversations() -> list[Sample]:
    """Three groups of four; a shared preamble, then turns of uneven lengths that end nowhere near a block's end."""
    rng = random.Random(0)
    preamble, samples = random_ids(rng, 150), []
    for _ in range(3):
        question = random_ids(rng, 37)
        for _ in range(4):
            said = preamble + question
            for _ in range(3):
                action = random_ids(rng, rng.randint(5, 70))
                samples.append(Sample.of_step(said, action))
                said += action + random_ids(rng, rng.randint(3, 50))
    return samples


def gradient(policy: LlamaForCausalLM, packer: Packer, autocast: torch.dtype | None) -> Tensor:
    """Of the sum of all log-probs, all parameters in one row."""
    compute = Compute(device=torch.device("cuda"), pack=packer, autocast_dtype=autocast)
    samples = conversations()
    policy.zero_grad()
    for batch in packer(samples, range(len(samples))):
        score(policy, batch.to(compute.device), compute).logprobs_N.sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in policy.parameters() if parameter.grad is not None])


@pytest.mark.parametrize("head_size", [32, 64, 128])
@pytest.mark.parametrize(("autocast", "allowed"), [(torch.bfloat16, 2e-2), (None, 1e-4)])
@pytest.mark.parametrize("compiled", [False, True])
def test_the_gradient_of_tries_is_that_of_padded_rows(
    head_size: int, autocast: torch.dtype | None, allowed: float, compiled: bool
) -> None:
    policy = small_llama(head_size).to("cuda")
    expected = gradient(policy, partial(pack, max_tokens=8192), None)
    if compiled:
        compile_layers(policy.get_decoder())
    found = gradient(policy, partial(pack_tries, max_tokens=4096, row_tokens=2048, width_multiple=256), autocast)
    assert float((found - expected).norm() / expected.norm()) < allowed
