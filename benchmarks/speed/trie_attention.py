"""Attention over token tries on a GPU: how long one layer takes, forward and backward, with FlexAttention's tiles.

    python benchmarks/speed/trie_attention.py                              # heads of 128, as in Qwen2.5-1.5B
    python benchmarks/speed/trie_attention.py --heads 9 --key-heads 3 --head-size 64
    python benchmarks/speed/trie_attention.py --backward 64,128,128,64,8,3 64,64,64,64,4,2 --forward 128,64,8,3
    python benchmarks/speed/trie_attention.py --backward all --forward all --json tiles.json

The first micro-batch of an update of a GRPO step of recipes/hotpotqa, in size (as in profile_update.py), with random
queries, keys and values in bfloat16. The first row has the tiles that training uses; in the second FlexAttention sees
that heads of queries share heads of keys, of which training makes copies. Other tiles are tried with --forward
(queries, keys, warps, stages) and --backward (queries and keys of the loop for keys, queries and keys of the loop for
queries, warps, stages); `all` is a list of likely ones. TFLOPS count the visible pairs of tokens alone. `--block 64`
tries smaller blocks of the mask with wide heads, from tiles that divide them. Tiles that the GPU has no room for are
reported as such.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the clone: agent_r1, benchmarks, recipes

from agent_r1.files import write_atomically
from agent_r1.learner.compute import CUDA_ROW_TOKENS, CUDA_WIDTH_MULTIPLE
from agent_r1.learner.packing.flex_attention import (
    LARGE_BLOCK,
    SMALL_BLOCK,
    kernel_options,
    patch_backward_tiles,
    with_own_heads,
)
from agent_r1.learner.packing.samples import MicroBatch
from agent_r1.learner.packing.trie import pack_tries
from agent_r1.learner.packing.trie_attention import block_mask
from benchmarks.common.flops import packed_work
from benchmarks.common.workloads import multi_turn_experience
from benchmarks.speed.profile_update import HOTPOTQA

FORWARD = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")
BACKWARD = ("BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2", "num_warps", "num_stages")
LIKELY = {
    "forward": ("128,64,8,3", "128,64,4,3", "128,128,8,2", "128,32,4,4", "64,64,4,3", "64,128,4,2"),
    "backward": (
        *("64,128,128,64,8,3", "64,128,128,64,8,2", "64,64,64,64,4,2", "64,64,64,64,4,3", "64,64,64,64,8,2"),
        *("32,128,128,32,8,2", "32,128,128,32,4,2", "32,64,64,32,4,3", "128,64,64,128,8,2", "128,128,128,128,8,1"),
    ),
}
DIVIDING = ("64,64,4,3", "64,64,64,64,4,2")
"""Forward and backward, for small blocks with wide heads: FlexAttention's own are larger than such a block."""
SHARED = "keys shared by heads"
MICRO_BATCH_TOKENS = 16384


@dataclass(frozen=True, kw_only=True)
class Attention:
    """One layer's attention over a micro-batch."""

    micro: MicroBatch
    """The tries."""
    query: Tensor
    """Random, as keys, values and the gradient of the result."""
    key: Tensor
    """With as many heads as the model has for keys."""
    value: Tensor
    """Likewise."""
    gradient: Tensor
    """Of the result."""
    block: int
    """Tokens per block of the mask."""

    def seconds(self, options: Mapping[str, int], repeats: int, *, shares_keys: bool = False) -> tuple[float, float]:
        """Of the forward and of the backward pass, compiled with these options; `shares_keys` leaves it to
        FlexAttention that several heads of queries have one head of keys."""
        torch.compiler.reset()
        mask = block_mask(self.micro, None, block=self.block)

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Any:
            if not shares_keys:
                key, value = with_own_heads(query, key, value)
            return cast(Any, flex_attention)(
                query,
                key,
                value,
                block_mask=mask,
                enable_gqa=query.shape[1] != key.shape[1],
                kernel_options={**kernel_options(query, self.block), **options},
            )

        inputs = (self.query, self.key, self.value)
        compiled = torch.compile(attend)
        # A backward pass that is repeated must not compute in the memory of what the forward pass kept.
        with torch._functorch.config.patch(donated_buffer=False):
            result = compiled(*inputs)
            forward = _seconds(lambda: compiled(*inputs), repeats)
            backward = _seconds(lambda: torch.autograd.grad(result, inputs, self.gradient, retain_graph=True), repeats)
        return forward, backward


def make_attention(*, heads: int, key_heads: int, head_size: int, block: int, device: torch.device) -> Attention:
    """The first micro-batch of a step, with random numbers."""
    samples = multi_turn_experience(replace(HOTPOTQA, groups=12), vocabulary=10_000).samples
    batches = pack_tries(
        samples,
        range(len(samples)),
        max_tokens=MICRO_BATCH_TOKENS,
        row_tokens=CUDA_ROW_TOKENS,
        width_multiple=CUDA_WIDTH_MULTIPLE,
        end_to_end=True,
    )
    micro = next(batches).to(device)
    generator = torch.Generator(device).manual_seed(0)
    width = micro.input_ids.shape[1]

    def some(count: int) -> Tensor:
        return torch.randn(1, count, width, head_size, generator=generator, device=device, dtype=torch.bfloat16)

    query, key, value = (some(count).requires_grad_() for count in (heads, key_heads, key_heads))
    return Attention(micro=micro, query=query, key=key, value=value, gradient=some(heads), block=block)


def _seconds(work: Callable[[], Any], repeats: int) -> float:
    """The median, by the device's clock; the first call is not counted."""
    work()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


@contextmanager
def any_backward_tiles() -> Iterator[None]:
    """FlexAttention's own choice of tiles must divide the mask's blocks, even where others are given."""
    from torch._inductor.choices import InductorChoices
    from torch._inductor.template_heuristics.triton import FlexBwDConfig

    smallest = FlexBwDConfig(16, 16, 16, 16, 1, 4)
    with mock.patch.object(InductorChoices, "get_flex_attention_bwd_configs", return_value=[smallest]):
        yield


def parse_tiles(text: str, names: Sequence[str], prefix: str) -> dict[str, int]:
    """Options of FlexAttention.

    >>> parse_tiles("128,64,8,3", FORWARD, "fwd")
    {'fwd_BLOCK_M': 128, 'fwd_BLOCK_N': 64, 'fwd_num_warps': 8, 'fwd_num_stages': 3}
    """
    numbers = text.split(",")
    if len(numbers) != len(names) or not all(number.isdigit() for number in numbers):
        raise SystemExit(f"{text}: expected {len(names)} numbers ({', '.join(names)}), such as 128,64,8,3")
    return {f"{prefix}_{name}": int(number) for name, number in zip(names, numbers, strict=True)}


def candidates(forward: Sequence[str], backward: Sequence[str]) -> Iterator[tuple[str, dict[str, int]]]:
    """Names and options of what is tried after the tiles of training."""
    for kind, names, given in (("forward", FORWARD, forward), ("backward", BACKWARD, backward)):
        for text in LIKELY[kind] if list(given) == ["all"] else given:
            yield f"{kind} {text}", parse_tiles(text, names, "fwd" if kind == "forward" else "bwd")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=12, help="of queries (12)")
    parser.add_argument("--key-heads", type=int, default=2, help="of keys and values (2)")
    parser.add_argument("--head-size", type=int, default=128, help="(128)")
    parser.add_argument("--block", type=int, choices=(SMALL_BLOCK, LARGE_BLOCK), help="of the mask (as in training)")
    parser.add_argument("--forward", nargs="+", default=[], metavar="TILES", help="other tiles of the forward pass")
    parser.add_argument("--backward", nargs="+", default=[], metavar="TILES", help="other tiles of the backward pass")
    parser.add_argument("--repeats", type=int, default=20, help="timed passes; the median counts (20)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found here")
    chosen = parser.parse_args(arguments)
    tried = [("as in training", {}), (SHARED, {}), *candidates(chosen.forward, chosen.backward)]
    if chosen.heads % chosen.key_heads:
        parser.error(f"--heads {chosen.heads}: must be a multiple of --key-heads ({chosen.key_heads})")
    if not torch.cuda.is_available():
        raise SystemExit("FlexAttention has no backward pass on a CPU: this needs a CUDA device")
    block = chosen.block or (SMALL_BLOCK if chosen.head_size <= SMALL_BLOCK else LARGE_BLOCK)
    attention = make_attention(
        heads=chosen.heads,
        key_heads=chosen.key_heads,
        head_size=chosen.head_size,
        block=block,
        device=torch.device("cuda"),
    )
    pairs = packed_work([attention.micro]).pairs * chosen.heads * chosen.head_size
    rows = []
    start: dict[str, int] = {}
    if block == SMALL_BLOCK < chosen.head_size:
        start = {**parse_tiles(DIVIDING[0], FORWARD, "fwd"), **parse_tiles(DIVIDING[1], BACKWARD, "bwd")}
    elif block == SMALL_BLOCK:
        patch_backward_tiles()
    for name, options in tried:
        given = {**start, **options}
        try:
            with any_backward_tiles() if given else nullcontext():
                seconds = attention.seconds(given, chosen.repeats, shares_keys=name == SHARED)
        except Exception as error:  # noqa: BLE001 - tiles that do not fit must not cost the others
            print(f"{name:32}  {type(error).__name__}: {next(iter(str(error).splitlines()), '')[:100]}", flush=True)
            continue
        rate = [count * pairs / took / 1e12 for count, took in zip((4, 10), seconds, strict=True)]
        forward, backward = (
            f"{1e6 * took:7.0f} us, {tflops:4.0f} TFLOPS" for took, tflops in zip(seconds, rate, strict=True)
        )
        print(f"{name:32}  forward {forward};  backward {backward}", flush=True)
        rows.append({"tiles": name, "forward_seconds": seconds[0], "backward_seconds": seconds[1]})
        if chosen.json is not None:
            write_atomically(chosen.json, json.dumps({"block": block, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
