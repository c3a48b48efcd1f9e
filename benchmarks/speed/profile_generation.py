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
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the clone: agent_r1, benchmarks, recipes

from agent_r1.engines.local import LocalEngine
from agent_r1.files import write_atomically
from agent_r1.models import choose_device
from benchmarks.common.device_profile import DeviceProfile, profiled, show_profile, summarise
from benchmarks.common.prompts import Workload, random_prompts
from benchmarks.common.sample_models import SampleModel, parse_model, tiny_model
from benchmarks.common.updates import synchronise
from benchmarks.common.workloads import Request, complete_all


@dataclass(frozen=True, kw_only=True)
class GenerationProfile(DeviceProfile):
    """What was found."""

    seconds: float
    """Of a round, without the profiler."""
    prompt_seconds: float
    """Of a round that makes one token per request."""


async def rounds(engine: LocalEngine, workload: Workload, vocabulary: int, device: torch.device) -> GenerationProfile:
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
    with profiled(device) as pieces:
        await once(4, workload.new_tokens)
    return GenerationProfile(**vars(summarise(pieces)), seconds=seconds, prompt_seconds=prompt_seconds)


def show(found: GenerationProfile, model: SampleModel, workload: Workload, console: Console) -> None:
    """A line and the two tables."""
    rate, prompts = workload.num_new_tokens / found.seconds, found.prompt_seconds / found.seconds
    console.print(
        f"{model.name}  {workload.name}: {rate:,.0f} tok/s, {found.seconds:.3f} s, prompts {prompts:.0%}, "
        f"device idle {found.idle:.1%} of the profiled round"
    )
    show_profile(found, console)


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
