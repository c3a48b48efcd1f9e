"""What sharding costs: one update with FSDP2 beside the same update of the plain learner.

    python benchmarks/speed/sharded.py --model S=random-smollm2-135m --set trainer.compile=true    # one GPU
    torchrun --standalone --nproc-per-node 8 benchmarks/speed/sharded.py --model Q=random-qwen2-1.5b
    python benchmarks/speed/sharded.py --tiny    # in seconds, also without a GPU: tries the script, not speed

On one rank nothing is exchanged, so the ratio is the cost of FSDP's bookkeeping and copies. On several ranks the update
is shared out, and the ratio is below 1 where that pays; the plain learner is then timed on the first rank's GPU, while
the others wait. The gathering of all weights, which an engine on every rank needs after each step, is timed as `push`.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the clone: agent_r1, benchmarks, recipes

from agent_r1.algorithms import bind_algorithm
from agent_r1.config import Config
from agent_r1.files import write_atomically
from agent_r1.learner import Experience, TorchLearner, make_learner
from agent_r1.learner.packing import TRIE_ATTENTION
from agent_r1.learner.sharded import Ranks, open_ranks
from agent_r1.models import choose_device
from benchmarks.common.sample_models import SampleModel, parse_model, tiny_model
from benchmarks.common.updates import median_and_fastest, synchronise, training_config, update_seconds
from benchmarks.common.workloads import Conversations, multi_turn_experience

CONVERSATIONS = Conversations(groups=24, members=8, turns=5, preamble=512, question=64, action=64, answer=64)
TINY = Conversations(groups=3, members=4, turns=3, preamble=32, question=4, action=6, answer=6)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print and write the figures of each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", default=[], type=parse_model)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="keys of a run's configuration")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        models = [tiny_model(Path(folder) / "tiny")] if options.tiny else options.model
        overrides = ("trainer.sharding.mode=on", "algorithm=grpo", *options.set)
        rows: list[dict[str, Any]] = []
        with open_ranks(training_config(models[0], overrides)) as ranks:
            for model in models:
                shape = TINY if options.tiny else CONVERSATIONS
                row = measure(model, training_config(model, overrides), shape, options.repeats, ranks)
                rows.append(row)
                if ranks.is_first:
                    print(json.dumps(row, indent=2))
        if options.json is not None and ranks.is_first:
            write_atomically(options.json, json.dumps({"rows": rows}, indent=2) + "\n")


def measure(model: SampleModel, config: Config, shape: Conversations, repeats: int, ranks: Ranks) -> dict[str, Any]:
    """One model's figures."""
    experience = multi_turn_experience(shape, vocabulary=model.vocabulary)
    plain = ranks.by_first(lambda: _timed(_learner(model, config, None), experience, repeats))
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    sharded = _timed(_learner(model, config, ranks), experience, repeats)
    return {
        "model": model.name,
        "ranks": ranks.size,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "tokens": sum(map(len, experience.samples)),
        "plain": plain,
        "sharded": sharded,
        "ratio": sharded["seconds"] / plain["seconds"],
    }


def _learner(model: SampleModel, config: Config, ranks: Ranks | None) -> TorchLearner:
    policy = model.load(getattr(torch, config.model.dtype), choose_device(config.trainer.device))
    policy.set_attn_implementation(TRIE_ATTENTION)  # type: ignore[operator]
    return make_learner(config, policy, bind_algorithm(config.algorithm), ranks)


def _timed(learner: TorchLearner, experience: Experience, repeats: int) -> dict[str, float]:
    figures = median_and_fastest(update_seconds(learner, experience, repeats))
    pushes = []
    for _ in range(3):
        synchronise()
        started = time.perf_counter()
        for _ in learner.weights():
            pass
        synchronise()
        pushes.append(time.perf_counter() - started)
    memory = learner.memory()
    return {**figures, "push_seconds": min(pushes), **({} if memory is None else {"peak_gpu_gb": memory})}


if __name__ == "__main__":
    main()
