"""Where the time of an update goes: kernels by kind and by name, and how long the device had nothing to do.

    python benchmarks/speed/profile_update.py --model Q=random-qwen2-1.5b --json update.json
    python benchmarks/speed/profile_update.py --model Q=FOLDER --set trainer.gradient_checkpointing=true
    python benchmarks/speed/profile_update.py --tiny        # a tiny model, in seconds, also without a GPU

One update of a GRPO step of recipes/hotpotqa, in size: 50 groups of 8 episodes with 3 calls of 29 tokens. One round
compiles and warms up, some are timed, one is profiled. `matrix products at the peak` is what the model's FLOPs
(common/flops.py) would take at the GPU's peak rate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the clone: agent_r1, benchmarks, recipes

from agent_r1.files import write_atomically
from agent_r1.models import choose_device
from benchmarks.common.device_profile import DeviceProfile, profiled, show_profile, summarise
from benchmarks.common.flops import known_peak, packed_work, shape_of, update_flops
from benchmarks.common.sample_models import SampleModel, parse_model, tiny_model
from benchmarks.common.updates import make_learner, packed, synchronise, training_config, update_seconds
from benchmarks.common.workloads import Conversations, multi_turn_experience

HOTPOTQA = Conversations(groups=50, members=8, turns=3, preamble=380, question=30, action=29, answer=160)
TINY = Conversations(groups=2, members=4, turns=2, preamble=32, question=4, action=6, answer=6)


@dataclass(frozen=True, kw_only=True)
class UpdateProfile(DeviceProfile):
    """What was found."""

    seconds: float
    """Of an update, without the profiler."""
    micro_batches: int
    """That it is cut into."""
    tokens: int
    """That go through the model."""
    peak_seconds: float | None
    """What its FLOPs take at the GPU's peak rate; None where no peak is known."""


def profile_update(model: SampleModel, shape: Conversations, overrides: Sequence[str], repeats: int) -> UpdateProfile:
    """Warm up, time, profile."""
    learner = make_learner(model, training_config(model, tuple(overrides)))
    experience = multi_turn_experience(shape, vocabulary=model.vocabulary)
    seconds = statistics.median(update_seconds(learner, experience, repeats))
    with profiled(learner.device) as pieces:
        learner.learn_sync(experience, step=0)
        synchronise()
    batches, peak = packed(learner, experience), known_peak()
    work = packed_work(batches)
    flops = update_flops(shape_of(learner.policy), work)
    return UpdateProfile(
        **vars(summarise(pieces)),
        seconds=seconds,
        micro_batches=len(batches),
        tokens=work.tokens,
        peak_seconds=None if peak is None else flops / (peak * 1e12),
    )


def show(found: UpdateProfile, model: SampleModel, shape: Conversations, console: Console) -> None:
    """A line and the two tables."""
    at_peak = "" if found.peak_seconds is None else f", matrix products at the peak {found.peak_seconds:.3f} s"
    console.print(
        f"{model.name}  {shape.name}: {found.seconds:.3f} s for {found.tokens:,} tokens in {found.micro_batches} "
        f"micro-batches{at_peak}; profiled: device busy {found.busy_seconds:.3f} s, idle {found.idle:.1%}"
    )
    show_profile(found, console)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", metavar="NAME=FOLDER", help="a folder, or a shape such as random-qwen2-1.5b")
    parser.add_argument("--groups", type=int, help="that are updated on (50)")
    parser.add_argument("--repeats", type=int, default=3, help="timed updates; the median counts (3)")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of the run, as in a recipe")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found here")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and a tiny update")
    chosen = parser.parse_args(arguments)
    if not chosen.model and not chosen.tiny:
        parser.error("give --model NAME=FOLDER, or --tiny")
    shape = TINY if chosen.tiny else HOTPOTQA
    if chosen.groups is not None:
        shape = replace(shape, groups=chosen.groups)
    compiled = str(choose_device("auto").type == "cuda").lower()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    with tempfile.TemporaryDirectory() as folder:
        model = parse_model(chosen.model) if chosen.model else tiny_model(Path(folder))
        found = profile_update(model, shape, (f"trainer.compile={compiled}", *chosen.set), chosen.repeats)
    show(found, model, shape, console)
    if chosen.json is not None:
        write_atomically(chosen.json, json.dumps(asdict(found), indent=2) + "\n")


if __name__ == "__main__":
    main()
