"""Updates on a GPU: token tries through FlexAttention give the gradient of padded rows, however it is cut up."""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from agent_r1.learner.compute import Compute, UpdateThread
from agent_r1.learner.packing.flex_attention import (
    LARGE_BLOCK,
    SMALL_BLOCK,
    block_tokens,
    kernel_options,
    patch_backward_tiles,
)
from agent_r1.learner.packing.samples import Packer, Sample, pack
from agent_r1.learner.packing.trie import pack_tries
from agent_r1.learner.packing.trie_attention import TRIE_ATTENTION
from agent_r1.learner.scoring import score_micro_batch
from agent_r1.models.load import compile_layers
from tests.helpers.hand_made import random_ids

pytestmark = [
    # Compilers deprecate things among themselves, and advise TF32.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32:UserWarning"),
    # They look at gradients of everything they trace.
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),
]
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


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
        score_micro_batch(policy, batch.to(compute.device), compute).logprobs_N.sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in policy.parameters() if parameter.grad is not None])


@on_a_gpu
@pytest.mark.parametrize("head_size", [32, 64, 128])
@pytest.mark.parametrize(("autocast", "allowed"), [(torch.bfloat16, 2e-2), (None, 1e-4)])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("end_to_end", [False, True])
def test_the_gradient_of_tries_is_that_of_padded_rows(
    head_size: int, autocast: torch.dtype | None, allowed: float, compiled: bool, end_to_end: bool
) -> None:
    policy = small_llama(head_size).to("cuda")
    expected = gradient(policy, partial(pack, max_tokens=8192), None)
    if compiled:
        compile_layers(policy.get_decoder())
    packer = partial(pack_tries, max_tokens=4096, row_tokens=2048, width_multiple=256, end_to_end=end_to_end)
    found = gradient(policy, packer, autocast)
    assert float((found - expected).norm() / expected.norm()) < allowed


@pytest.mark.parametrize(("head_size", "block"), [(64, SMALL_BLOCK), (128, LARGE_BLOCK)])
def test_narrow_heads_in_half_precision_get_small_blocks(
    monkeypatch: pytest.MonkeyPatch, head_size: int, block: int
) -> None:
    monkeypatch.setattr("agent_r1.learner.packing.flex_attention.patch_backward_tiles", lambda: True)
    config = small_llama(head_size).config
    assert block_tokens(config) == LARGE_BLOCK  # nothing is in half precision here
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
    assert block_tokens(config) == block


def test_tiles_divide_the_block_of_the_mask() -> None:
    query = torch.zeros(1, 1, 1, 64, dtype=torch.bfloat16)
    for block in (SMALL_BLOCK, LARGE_BLOCK):
        chosen = kernel_options(query, block)
        assert {
            block % size for name, size in chosen.items() if "BLOCK" in name and name.startswith(("fwd", "bwd"))
        } == {0}
    own_tiles = {"FORCE_USE_FLEX_ATTENTION": True}
    assert kernel_options(query.float(), SMALL_BLOCK) == own_tiles
    assert kernel_options(torch.zeros(1, 1, 1, 128, dtype=torch.bfloat16), LARGE_BLOCK) == own_tiles


@pytest.fixture
def nothing_chosen() -> Iterator[None]:
    """As in a process that has not asked for small tiles yet; the next that asks is told anew."""
    patch_backward_tiles.cache_clear()
    yield
    patch_backward_tiles.cache_clear()


@pytest.mark.whole
@pytest.mark.usefixtures("nothing_chosen")
def test_the_compilers_backward_tiles_for_narrow_heads_divide_a_small_block_in_threads_that_asked_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch._inductor import config
    from torch._inductor.choices import InductorChoices
    from torch._inductor.template_heuristics.triton import FlexBwDConfig
    from torch._inductor.virtualized import V

    large = FlexBwDConfig(64, 128, 128, 64, 3, 8)  # Hopper's for heads of 64, where there is no GPU to ask
    monkeypatch.setattr(InductorChoices, "get_flex_attention_bwd_configs", lambda self, head_dim, *args: [large])

    def asked(head_size: int) -> list[FlexBwDConfig]:
        return V.choices.get_flex_attention_bwd_configs(head_size, torch.bfloat16, "cuda")

    with config.patch(inductor_choices_class=None), ThreadPoolExecutor(1) as thread:
        assert thread.submit(asked, 64).result() == [large]
        assert patch_backward_tiles()
        assert thread.submit(asked, 64).result() == [FlexBwDConfig(64, 64, 64, 64, 3, 8)]
        assert thread.submit(asked, 128).result() == [large]


@pytest.mark.whole  # imports the compiler
@pytest.mark.usefixtures("nothing_chosen")
def test_the_choices_of_others_are_left_alone() -> None:
    from torch._inductor import config
    from torch._inductor.choices import InductorChoices

    own = InductorChoices.get_flex_attention_bwd_configs
    with config.patch(inductor_choices_class=InductorChoices):
        assert not patch_backward_tiles()
    assert InductorChoices.get_flex_attention_bwd_configs is own


@pytest.mark.whole  # imports the compiler
@pytest.mark.usefixtures("nothing_chosen")
@pytest.mark.parametrize("other", [None, lambda self, device_type: []])
def test_a_torch_with_another_method_is_named_and_left_alone(monkeypatch: pytest.MonkeyPatch, other: Any) -> None:
    from torch._inductor import config
    from torch._inductor.choices import InductorChoices

    monkeypatch.setattr(InductorChoices, "get_flex_attention_bwd_configs", other)
    with (
        config.patch(inductor_choices_class=None),
        pytest.warns(RuntimeWarning, match=rf"torch {re.escape(torch.__version__)} has no InductorChoices"),
    ):
        assert not patch_backward_tiles()
    assert InductorChoices.get_flex_attention_bwd_configs is other


@pytest.mark.whole  # imports the compiler
@pytest.mark.usefixtures("nothing_chosen")
def test_a_torch_with_other_tiles_is_an_error_that_names_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config
    from torch._inductor.choices import InductorChoices

    monkeypatch.setattr(InductorChoices, "get_flex_attention_bwd_configs", lambda self, head_dim: [object()])
    with config.patch(inductor_choices_class=None):
        assert patch_backward_tiles()
        with pytest.raises(RuntimeError, match=rf"of torch {re.escape(torch.__version__)} gives other records"):
            InductorChoices().get_flex_attention_bwd_configs(64)  # type: ignore[call-arg]


@on_a_gpu
def test_an_update_thread_has_the_callers_device_and_stream() -> None:
    device = torch.device("cuda", torch.cuda.device_count() - 1)
    stream = torch.cuda.Stream(device)

    async def main() -> tuple[int, torch.cuda.Stream]:
        with torch.cuda.stream(stream):
            return await UpdateThread(device).run(lambda: (torch.cuda.current_device(), torch.cuda.current_stream()))

    assert asyncio.run(main()) == (device.index, stream)


@on_a_gpu
def test_tries_learn_after_plain_rows_were_compiled_in_the_same_process() -> None:
    """As in a run that begins with its warm start; a process of its own, in which nothing was compiled before."""
    script = (
        "import torch\n"
        "from functools import partial\n"
        "from agent_r1.models.load import compile_layers\n"
        "from agent_r1.learner.packing.samples import pack\n"
        "from agent_r1.learner.packing.trie import pack_tries\n"
        "from tests.cuda.test_cuda_training import gradient, small_llama\n"
        "policy = small_llama(64).to('cuda')\n"
        "compile_layers(policy.get_decoder())\n"
        "gradient(policy, partial(pack, max_tokens=8192), torch.bfloat16)\n"
        "tries = partial(pack_tries, max_tokens=4096, row_tokens=2048, width_multiple=256)\n"
        "print(float(gradient(policy, tries, torch.bfloat16).norm()) > 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.stdout.endswith("True\n"), done.stderr
