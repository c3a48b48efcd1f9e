"""Where the time of generation goes: kernels by kind and by name, and how long the device had nothing to do.

    python benchmarks/speed/profile_generation.py --model Q=FOLDER --requests 1024
    python benchmarks/speed/profile_generation.py --model Q=random-qwen2-1.5b --engine '{"prefill_tokens": 8192}'
    python benchmarks/speed/profile_generation.py --tiny        # a tiny model, in seconds, also without a GPU

Rounds of requests through `LocalEngine.generate` as in gpu.py: two to warm up, one timed, one timed that makes a single
token per request (`prompts` is its share of the whole), one profiled. The profiler slows the host: shares are of the
device's own time. Without a GPU, operators are counted instead of kernels.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the clone: agent_r1, benchmarks, recipes

from agent_r1.engines.local import LocalEngine
from agent_r1.files import write_atomically
from agent_r1.models import choose_device
from benchmarks.common.prompts import Workload, random_prompts
from benchmarks.common.sample_models import SampleModel, parse_model, tiny_model
from benchmarks.common.updates import synchronise
from benchmarks.common.workloads import Request, complete_all

KINDS = (
    ("sample", ("summarise_kernel", "sample_kernel", "bound_kernel", "advance_kernel")),
    ("attention", ("decode_kernel", "prefill_kernel", "merge_kernel", "write_kernel", "append_kernel", "attention")),
    ("copies", ("Memcpy", "Memset", "copy_")),
    ("matrix products", ("gemm", "nvjet", "cutlass", "sm90_xmma", "cublas", "splitKreduce", "mm", "linear")),
)
"""What is in a kernel's name, looked for in this order; all others are element by element."""
LONGEST = 16
"""Kernels that are named."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One kernel, or operator."""

    name: str
    """As the profiler has it."""
    start: float
    """Microseconds."""
    end: float
    """Microseconds."""


def kind_of(name: str) -> str:
    """What a kernel does.

    >>> kind_of("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTN"), kind_of("triton_poi_fused_mul_silu_3")
    ('matrix products', 'element by element')
    """
    return next((kind for kind, marks in KINDS if any(mark in name for mark in marks)), "element by element")


def busy_time(pieces: Iterable[Piece]) -> float:
    """Microseconds in which at least one piece was computed.

    >>> busy_time([Piece(name="a", start=0, end=4), Piece(name="b", start=3, end=5), Piece(name="c", start=7, end=8)])
    6
    """
    total, reached = 0.0, float("-inf")
    for piece in sorted(pieces, key=lambda piece: piece.start):
        total += max(0.0, piece.end - max(piece.start, reached))
        reached = max(reached, piece.end)
    return total


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What was found."""

    seconds: float
    """Of a round, without the profiler."""
    prompt_seconds: float
    """Of a round that makes one token per request."""
    idle: float
    """Share of the profiled round, from its first kernel to its last, in which the device had nothing to do."""
    kinds: dict[str, float]
    """Share of the device's time by kind."""
    kernels: list[dict[str, Any]]
    """The longest: name, times, mean microseconds, share."""


def summarise(pieces: Sequence[Piece], *, seconds: float, prompt_seconds: float) -> Profile:
    """Add pieces up."""
    kinds: dict[str, float] = {}
    by_name: dict[str, list[float]] = {}
    for piece in pieces:
        length = piece.end - piece.start
        kinds[kind_of(piece.name)] = kinds.get(kind_of(piece.name), 0.0) + length
        by_name.setdefault(piece.name, []).append(length)
    total = sum(kinds.values()) or 1.0
    span = max((piece.end for piece in pieces), default=0.0) - min((piece.start for piece in pieces), default=0.0)
    ranked = sorted(by_name.items(), key=lambda entry: -sum(entry[1]))[:LONGEST]
    return Profile(
        seconds=seconds,
        prompt_seconds=prompt_seconds,
        idle=1.0 - busy_time(pieces) / span if span else 0.0,
        kinds={kind: amount / total for kind, amount in sorted(kinds.items(), key=lambda entry: -entry[1])},
        kernels=[
            {"name": name, "times": len(each), "mean_us": sum(each) / len(each), "share": sum(each) / total}
            for name, each in ranked
        ],
    )


def pieces_of(profiler: profile, device: torch.device) -> list[Piece]:
    """Kernels and copies of a GPU, else operators that call no others."""
    if device.type == "cuda":
        wanted = [event for event in profiler.events() or () if event.device_type == DeviceType.CUDA]
    else:
        wanted = [event for event in profiler.events() or () if not event.cpu_children]
    return [Piece(name=event.name, start=event.time_range.start, end=event.time_range.end) for event in wanted]


async def rounds(engine: LocalEngine, workload: Workload, vocabulary: int, device: torch.device) -> Profile:
    """Warm up, time, profile."""

    async def once(seed: int, new_tokens: int) -> float:
        prompts = random_prompts(workload, vocabulary=vocabulary, seed=seed)
        synchronise()
        started = time.perf_counter()
        await complete_all(engine, [Request(prompt, new_tokens) for prompt in prompts], first_seed=seed)
        synchronise()
        return time.perf_counter() - started

    for seed in range(2):
        await once(seed, workload.new_tokens)
    seconds, prompt_seconds = await once(2, workload.new_tokens), await once(3, 1)
    activity = ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiler:
        await once(4, workload.new_tokens)
    return summarise(pieces_of(profiler, device), seconds=seconds, prompt_seconds=prompt_seconds)


def show(found: Profile, model: SampleModel, workload: Workload, console: Console) -> None:
    """The two tables."""
    rate, prompts = workload.num_new_tokens / found.seconds, found.prompt_seconds / found.seconds
    console.print(
        f"{model.name}  {workload.name}: {rate:,.0f} tok/s, {found.seconds:.3f} s, prompts {prompts:.0%}, "
        f"device idle {found.idle:.1%} of the profiled round"
    )
    kinds = Table("kind", "share")
    for kind, share in found.kinds.items():
        kinds.add_row(kind, f"{share:.1%}")
    kernels = Table("kernel", "times", "mean us", "share")
    for entry in found.kernels:
        kernels.add_row(entry["name"][:100], str(entry["times"]), f"{entry['mean_us']:.1f}", f"{entry['share']:.1%}")
    console.print(kinds, kernels)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", metavar="NAME=FOLDER", help="a folder, or a shape such as random-qwen2-1.5b")
    parser.add_argument("--requests", type=int, default=1024, help="all at once (1024)")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="of each (128)")
    parser.add_argument("--new-tokens", type=int, default=128, help="of each (128)")
    parser.add_argument("--engine", type=json.loads, default={}, metavar="JSON", help="more arguments of LocalEngine")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found here")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, six requests of 16 + 8 tokens")
    chosen = parser.parse_args(arguments)
    if not chosen.model and not chosen.tiny:
        parser.error("give --model NAME=FOLDER, or --tiny")
    sizes = (6, 16, 8) if chosen.tiny else (chosen.requests, chosen.prompt_tokens, chosen.new_tokens)
    workload = Workload(groups=sizes[0], prompt_tokens=sizes[1], new_tokens=sizes[2])
    device, console = choose_device("auto"), Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        model = parse_model(chosen.model) if chosen.model else tiny_model(Path(folder))
        engine = LocalEngine(
            model.load(dtype, device),
            dtype=dtype,
            **{"max_requests": sizes[0], "context_length": sizes[1] + sizes[2], **chosen.engine},
        )
        found = runner.run(rounds(engine, workload, model.vocabulary, device))
        runner.run(engine.close())
    show(found, model, workload, console)
    if chosen.json is not None:
        write_atomically(chosen.json, json.dumps(asdict(found), indent=2) + "\n")


if __name__ == "__main__":
    main()
