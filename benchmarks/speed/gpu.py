"""Generation, update and a whole GRPO step on one GPU, in bfloat16, as a user gets them; beside vLLM if it is there.

    python benchmarks/speed/gpu.py --model S=FOLDER --model Q=FOLDER --gsm8k train.jsonl --json gpu.json
    python benchmarks/speed/gpu.py --model S=FOLDER --only peer --peer vllm --join gpu.json --json both.json
    python benchmarks/speed/gpu.py --model S=random-smollm2-135m --model Q=random-qwen2-1.5b --only generation mfu
    python benchmarks/speed/gpu.py --tiny    # every row in seconds, also without a GPU: tries the script, not speed

A model is a Hugging Face folder or a shape with random weights (random-smollm2-135m, random-qwen2-1.5b).

generation   tokens per second with the log-prob of each, temperature 1, all requests at once through
             `LocalEngine.generate`: 256 and 1024 requests of 128 + 128 tokens, and 64 groups of 8 that share a prompt
             of 512. Prompts are random, fresh for every repeat (no cache has seen them); no stop ids, so all are made.
peer         the same with vLLM's offline API in a process of its own (`--peer vllm`)
grpo_step    one GRPO step on GSM8K: 64 prompts x 8, at most 256 new tokens, one epoch, no KL; seconds of the median
             step after two, in rollout, update and push of the weights. With the reward `answer` groups whose members
             earned the same are left out of the update (`credited_share` is what remains); `spread` makes it compute
             every trajectory.
update       one update on 64 rows of 512 tokens, all but the first scored, next to nothing shared
multi_turn   one update on multi-turn conversations on token tries and on one padded row per step; and how far the two
             gradients are from each other, in float32 without TF32
mfu          model FLOPs of the multi-turn update on tries (counted in common/flops.py) per second over the GPU peak,
             without and with gradient checkpointing

Training rows hold float32 weights and compute in bfloat16, the defaults of a run; `--set` changes any key of theirs.
Rows are printed as they are measured and written to --json after each. A row that fails says why.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the clone: agent_r1, benchmarks, recipes

from agent_r1.config import Config
from agent_r1.engines.local import LocalEngine
from agent_r1.files import write_atomically
from agent_r1.models import choose_device
from benchmarks.common.flops import ModelShape, Work, distinct_work, known_peak, packed_work, shape_of, update_flops
from benchmarks.common.gsm8k import HOW_TO_GET, REWARDS, StepPlan, as_task_row, read_gsm8k, run_steps
from benchmarks.common.prompts import Workload, random_prompts
from benchmarks.common.sample_models import SampleModel, parse_model, tiny_model
from benchmarks.common.updates import (
    make_learner,
    median_and_fastest,
    packed,
    synchronise,
    training_config,
    trie_gradient_errors,
    update_seconds,
    with_trainer,
)
from benchmarks.common.workloads import Conversations, Request, complete_all, multi_turn_experience

KINDS = ("generation", "update", "grpo_step", "multi_turn", "mfu", "peer")
FIRST_SEED = 1_000

Figures = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large everything is."""

    generation: tuple[Workload, ...]
    conversations: Conversations
    """Of the multi-turn update."""
    compared: Conversations
    """A smaller batch of the same form, for the gradients."""
    plain: Conversations
    """Of the update in which next to nothing is shared."""
    step: StepPlan
    micro_batch_tokens: int
    context_length: int
    """Of the GRPO step."""


FULL = Sizes(
    generation=(
        Workload(groups=256, prompt_tokens=128, new_tokens=128),
        Workload(groups=1024, prompt_tokens=128, new_tokens=128),
        Workload(groups=64, members=8, prompt_tokens=512, new_tokens=128),
    ),
    conversations=Conversations(groups=24, members=8, turns=5, preamble=512, question=64, action=64, answer=64),
    compared=Conversations(groups=2, members=4, turns=5, preamble=512, question=64, action=64, answer=64),
    plain=Conversations(groups=8, members=8, turns=1, preamble=0, question=1, action=511, answer=0),
    step=StepPlan(groups=64, members=8, new_tokens=256, warmup=2, steps=5),
    micro_batch_tokens=32768,
    context_length=1024,
)
TINY = Sizes(
    generation=(
        Workload(groups=6, prompt_tokens=16, new_tokens=8),
        Workload(groups=12, prompt_tokens=16, new_tokens=8),
        Workload(groups=2, members=4, prompt_tokens=48, new_tokens=8),
    ),
    conversations=Conversations(groups=3, members=4, turns=3, preamble=32, question=4, action=6, answer=6),
    compared=Conversations(groups=2, members=2, turns=3, preamble=32, question=4, action=6, answer=6),
    plain=Conversations(groups=2, members=4, turns=1, preamble=0, question=1, action=31, answer=0),
    step=StepPlan(groups=2, members=4, new_tokens=8, warmup=1, steps=2),
    micro_batch_tokens=1024,
    context_length=384,
)
TINY_ROWS = [
    as_task_row({"question": f"What is {left} + {right}?", "answer": f"#### {left + right}"})
    for left in range(2, 5)
    for right in range(2, 5)
]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    kind: str
    """One of `KINDS`."""
    model: str
    """The model's name."""
    case: str
    """What was run, in words."""
    figures: Figures = field(default_factory=dict)
    """What was measured; empty when it failed or was left out."""
    note: str = ""
    """What must be known about the figures, or why there are none."""
    error: str | None = None
    """What went wrong."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Everything the rows are measured with."""

    sizes: Sizes
    device: torch.device
    repeats: int
    overrides: tuple[str, ...]
    """Of every training configuration."""
    peak_tflops: float | None
    engine: dict[str, Any]
    """Further arguments of `LocalEngine`."""
    gsm8k: Path | None
    rewards: tuple[str, ...]
    tiny: bool
    peer: Peer | None


@dataclass(frozen=True, kw_only=True)
class Peer:
    """How to run vLLM."""

    python: str
    path: str
    """Put before PYTHONPATH."""
    engine: dict[str, Any]
    """Further arguments of `vllm.LLM`."""
    sampling: dict[str, Any]
    """Further arguments of `vllm.SamplingParams`."""
    timeout: float
    """Seconds for one model."""


# --- one row --------------------------------------------------------------------------------------------------------


def attempt(kind: str, model: SampleModel, case: str, measure: Callable[[], Figures], note: str = "") -> Row:
    """The row of one measurement; a failure is a row too."""
    free_memory()
    try:
        figures = measure()
    except Exception as error:  # noqa: BLE001 - out of memory in one row must not cost the others
        return Row(kind=kind, model=model.name, case=case, note=note, error=_told(error))
    return Row(kind=kind, model=model.name, case=case, figures=figures, note=note)


def _told(error: BaseException) -> str:
    first_line = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first_line}"[:400]


def free_memory() -> None:
    """Give back what earlier rows held and count the peak from here."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_memory() -> Figures:
    """Peak since the row began; nothing without a GPU."""
    if not torch.cuda.is_available():
        return {}
    return {
        "peak_allocated_gb": torch.cuda.max_memory_allocated() / 1e9,
        "peak_reserved_gb": torch.cuda.max_memory_reserved() / 1e9,
    }


# --- generation -----------------------------------------------------------------------------------------------------


def generation_rows(bench: Bench, model: SampleModel) -> Iterator[Row]:
    """All workloads with one engine, as in one run."""
    workloads = bench.sizes.generation
    settings = {
        "max_requests": max(workload.num_requests for workload in workloads),
        "context_length": max(workload.prompt_tokens + workload.new_tokens for workload in workloads),
        **bench.engine,
    }
    # A CPU computes bfloat16 in small pieces: a tiny run would take minutes.
    dtype = torch.bfloat16 if bench.device.type == "cuda" else torch.float32
    engine = LocalEngine(model.load(dtype, bench.device), dtype=dtype, **settings)
    with asyncio.Runner() as runner:
        for workload in workloads:

            def measure(workload: Workload = workload) -> Figures:
                return runner.run(generation_figures(engine, workload, model.vocabulary, bench.repeats))

            yield attempt("generation", model, workload.name, measure)
        runner.run(engine.close())


async def generation_figures(engine: LocalEngine, workload: Workload, vocabulary: int, repeats: int) -> Figures:
    """Tokens per second over all repeats; the first round warms up and is not counted."""
    seconds, steps = [], []
    for repeat in range(repeats + 1):
        prompts = random_prompts(workload, vocabulary=vocabulary, seed=FIRST_SEED + repeat)
        requests = [Request(prompt, workload.new_tokens) for prompt in prompts]
        before = engine.stats.steps
        synchronise()
        started = time.perf_counter()
        completions = await complete_all(engine, requests, first_seed=repeat * len(requests))
        seconds.append(time.perf_counter() - started)
        steps.append(engine.stats.steps - before)
        made = sum(len(completion.logprobs) for completion in completions)
        if made != workload.num_new_tokens:
            raise RuntimeError(f"{made} tokens were made where {workload.num_new_tokens} were asked for")
    return {**rate_figures(workload, seconds[1:]), "steps": statistics.median(steps[1:]), **peak_memory()}


def rate_figures(workload: Workload, seconds: Sequence[float]) -> Figures:
    """Generated tokens per second: the median repeat and the best."""
    return {
        "tokens_per_second": workload.num_new_tokens / statistics.median(seconds),
        "best_tokens_per_second": workload.num_new_tokens / min(seconds),
        **median_and_fastest(seconds),
    }


# --- the peer -------------------------------------------------------------------------------------------------------


def peer_rows(bench: Bench, model: SampleModel) -> Iterator[Row]:
    """What vLLM makes of the same workloads."""
    if bench.peer is None:
        return
    with tempfile.TemporaryDirectory() as scratch:
        result = run_peer(bench, bench.peer, model, Path(scratch))
    note = f"vLLM {result['version']}" if result["version"] else "vLLM"
    for workload in bench.sizes.generation:
        seconds = result["seconds"].get(workload.name)
        error = result["error"] or result["errors"].get(workload.name)
        yield Row(
            kind="peer",
            model=model.name,
            case=workload.name,
            figures=rate_figures(workload, seconds) if seconds else {},
            note=note,
            error=None if seconds else (error or "no result"),
        )


def run_peer(bench: Bench, peer: Peer, model: SampleModel, scratch: Path) -> dict[str, Any]:
    """Run peer_vllm.py to its end or its time limit; what it had measured by then counts."""
    source, engine = model.peer_folder(scratch / "model")
    job = {
        "model": source,
        "vocabulary": model.vocabulary,
        "workloads": [asdict(workload) for workload in bench.sizes.generation],
        "repeats": bench.repeats,
        "seed": FIRST_SEED,
        "engine": {**engine, **peer.engine},
        "sampling": peer.sampling,
    }
    (scratch / "job.json").write_text(json.dumps(job))
    free_memory()
    script = Path(__file__).with_name("peer_vllm.py")
    paths = os.pathsep.join(filter(None, [peer.path, os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [peer.python, str(script), str(scratch / "job.json"), str(scratch / "result.json")],
        # FlashInfer's sampler is compiled at the first use, which asks for a CUDA compiler.
        env={"VLLM_USE_FLASHINFER_SAMPLER": "0", **os.environ, "PYTHONPATH": paths},
        stdout=sys.stderr,
        process_group=0,
    )
    stopped = ""
    try:
        process.wait(peer.timeout)
    except subprocess.TimeoutExpired:
        stopped = f"stopped after {peer.timeout:.0f} s"
    finally:
        _end(process)
    nothing: dict[str, Any] = {"version": None, "error": None, "seconds": {}, "errors": {}}
    written = scratch / "result.json"
    result: dict[str, Any] = json.loads(written.read_text()) if written.is_file() else nothing
    if not result["error"] and len(result["seconds"]) + len(result["errors"]) < len(bench.sizes.generation):
        result["error"] = stopped or f"its process ended with code {process.returncode}"
    return result


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process with those it started: vLLM computes in a child that would keep the GPU."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()


# --- training -------------------------------------------------------------------------------------------------------


def grpo_step_rows(bench: Bench, model: SampleModel) -> Iterator[Row]:
    """GRPO steps through a whole training run, once for each reward."""
    plan = bench.sizes.step
    missing = HOW_TO_GET if bench.gsm8k is None and not bench.tiny else ""
    if model.is_random:
        missing = "left out: random weights have no tokenizer; give a model folder"
    if missing:
        yield Row(kind="grpo_step", model=model.name, case=plan.name, note=missing)
        return
    rows = TINY_ROWS if bench.gsm8k is None else read_gsm8k(bench.gsm8k, plan.groups * (plan.warmup + plan.steps))
    size = (
        f"rollout.context_length={bench.sizes.context_length}",
        f"trainer.micro_batch_tokens={bench.sizes.micro_batch_tokens}",
    )
    for reward in bench.rewards:

        def measure(reward: str = reward) -> Figures:
            overrides = [*size, *bench.overrides]
            return run_steps(plan, model=model.source, rows=rows, reward=reward, overrides=overrides) | peak_memory()

        yield attempt("grpo_step", model, f"{plan.name}, reward {reward}", measure)


def update_rows(bench: Bench, model: SampleModel) -> Iterator[Row]:
    """Rows that share nothing: what packing cannot help with."""
    shape = bench.sizes.plain
    name = f"{shape.groups * shape.members} x {shape.question + shape.action} tokens"
    yield attempt("update", model, name, lambda: update_figures(bench, model, shape), note=_peak_note(bench))


def multi_turn_rows(bench: Bench, model: SampleModel) -> Iterator[Row]:
    """Tries against rows: tokens, seconds, gradients."""
    shape, compared = bench.sizes.conversations, bench.sizes.compared
    yield attempt("multi_turn", model, shape.name, lambda: packing_figures(bench, model, shape))
    yield attempt("multi_turn", model, f"gradients, {compared.name}", lambda: agreement_figures(bench, model, compared))


def mfu_rows(bench: Bench, model: SampleModel) -> Iterator[Row]:
    """The multi-turn update, keeping and recomputing what layers computed."""
    shape = bench.sizes.conversations
    for checkpointing in (False, True):

        def measure(checkpointing: bool = checkpointing) -> Figures:
            return update_figures(bench, model, shape, gradient_checkpointing=checkpointing)

        name = f"{shape.name}; activations {'recomputed' if checkpointing else 'kept'}"
        yield attempt("mfu", model, name, measure, note=_peak_note(bench))


def update_figures(bench: Bench, model: SampleModel, shape: Conversations, **trainer: Any) -> Figures:
    """One update on tries: seconds, tokens, and how much of the GPU it used."""
    learner = make_learner(model, with_trainer(_update_config(bench, model), **trainer))
    experience = multi_turn_experience(shape, vocabulary=model.vocabulary)
    seconds = update_seconds(learner, experience, bench.repeats)
    batches = packed(learner, experience)
    work, least = packed_work(batches), distinct_work(experience.samples)
    median = statistics.median(seconds)
    return {
        **median_and_fastest(seconds),
        "tokens_per_second": work.tokens / median,
        "micro_batches": len(batches),
        "computed_tokens": sum(batch.input_ids.numel() for batch in batches),
        **use_figures(shape_of(learner.policy), work, least, median, bench.peak_tflops),
        **peak_memory(),
    }


def use_figures(shape: ModelShape, work: Work, least: Work, seconds: float, peak_tflops: float | None) -> Figures:
    """Model FLOPs a second, and over the peak where one is known.

    `mfu` credits what the packed tries hold, `distinct_mfu` every distinct prefix once.
    """
    flops = update_flops(shape, work)
    figures = {
        "packed_tokens": work.tokens,
        "distinct_tokens": least.tokens,
        "scored_tokens": work.scored,
        "visible_pairs": work.pairs,
        "model_tflop": flops / 1e12,
        "model_tflops_per_second": flops / seconds / 1e12,
    }
    if peak_tflops is None:
        return figures
    peak = seconds * peak_tflops * 1e12
    return {**figures, "mfu": flops / peak, "distinct_mfu": update_flops(shape, least) / peak}


def packing_figures(bench: Bench, model: SampleModel, shape: Conversations) -> Figures:
    """The same update on tries and on one padded row per step."""
    experience = multi_turn_experience(shape, vocabulary=model.vocabulary)
    figures: Figures = {}
    for packing in ("trie", "rows"):
        free_memory()
        learner = make_learner(model, with_trainer(_update_config(bench, model), packing=packing))
        seconds = update_seconds(learner, experience, bench.repeats)
        tokens = sum(batch.input_ids.numel() for batch in packed(learner, experience))
        measured = {**median_and_fastest(seconds), "tokens": float(tokens), **peak_memory()}
        figures |= {f"{packing}_{name}": value for name, value in measured.items()}
        del learner
    return {
        **figures,
        "tokens_ratio": figures["rows_tokens"] / figures["trie_tokens"],
        "seconds_ratio": figures["rows_seconds"] / figures["trie_seconds"],
    }


def agreement_figures(bench: Bench, model: SampleModel, shape: Conversations) -> Figures:
    """The largest and the median relative error of a parameter's gradient."""
    experience = multi_turn_experience(shape, vocabulary=model.vocabulary)
    errors = list(trie_gradient_errors(model, _update_config(bench, model), experience).values())
    return {
        "largest_gradient_error": max(errors),
        "median_gradient_error": statistics.median(errors),
        "parameters": float(len(errors)),
    }


def _update_config(bench: Bench, model: SampleModel) -> Config:
    return training_config(model, (f"trainer.micro_batch_tokens={bench.sizes.micro_batch_tokens}", *bench.overrides))


def _peak_note(bench: Bench) -> str:
    return "no peak known, so no MFU" if bench.peak_tflops is None else f"peak {bench.peak_tflops:g} TFLOPS"


MEASURES: dict[str, Callable[[Bench, SampleModel], Iterator[Row]]] = {
    "generation": generation_rows,
    "grpo_step": grpo_step_rows,
    "update": update_rows,
    "multi_turn": multi_turn_rows,
    "mfu": mfu_rows,
    "peer": peer_rows,
}


def measure_all(bench: Bench, models: Sequence[SampleModel], kinds: Sequence[str]) -> Iterator[Row]:
    """Every row, the peer's last: it wants the GPU for itself and may take its time."""
    for kind in (kind for kind in MEASURES if kind in kinds):
        for model in models:
            try:
                yield from MEASURES[kind](bench, model)
            except Exception as error:  # noqa: BLE001 - a model that cannot be loaded, for one
                yield Row(kind=kind, model=model.name, case="", error=_told(error))
            free_memory()


# --- what people see ------------------------------------------------------------------------------------------------

SHOWN = {
    "tokens_per_second": "{:,.0f} tok/s",
    "ratio": "{:.2f} x vLLM",
    "steps": "{:.0f} steps",
    "seconds": "{:.3g} s",
    "rollout_seconds": "rollout {:.3g} s",
    "update_seconds": "update {:.3g} s",
    "push_seconds": "push {:.3g} s",
    "response_tokens": "{:.0f} tokens a response",
    "credited_share": "{:.0%} credited",
    "trie_seconds": "tries {:.3g} s",
    "rows_seconds": "rows {:.3g} s",
    "seconds_ratio": "{:.2f} x faster",
    "tokens_ratio": "{:.2f} x fewer tokens",
    "largest_gradient_error": "largest error {:.1e}",
    "model_tflops_per_second": "{:.3g} TFLOPS",
    "mfu": "MFU {:.1%}",
    "distinct_mfu": "({:.1%} of distinct tokens)",
    "peak_allocated_gb": "{:.1f} GB",
    "peak_reserved_gb": "({:.1f} reserved)",
}
"""Which figures the table has, in which form; the others are in the JSON."""


def in_words(row: Row) -> str:
    """The row's main figures in a line."""
    if row.error is not None:
        return f"failed: {row.error}" if not row.error.startswith("not installed") else row.error
    said = [form.format(row.figures[name]) for name, form in SHOWN.items() if name in row.figures]
    return ", ".join([*said, row.note] if row.note else said)


def with_ratios(rows: Sequence[Row]) -> list[Row]:
    """Our generation beside the peer's, where both were measured."""
    theirs = {(row.model, row.case): row.figures for row in rows if row.kind == "peer" and row.figures}

    def joined(row: Row) -> Row:
        figures = theirs.get((row.model, row.case))
        if row.kind != "generation" or not row.figures or figures is None:
            return row
        rate = figures["tokens_per_second"]
        beside = {"peer_tokens_per_second": rate, "ratio": row.figures["tokens_per_second"] / rate}
        return replace(row, figures={**row.figures, **beside})

    return [joined(row) for row in rows]


def table(rows: Sequence[Row]) -> Table:
    """All rows."""
    result = Table(box=None, pad_edge=False)
    for title in ("row", "model", "case", "figures"):
        result.add_column(title, overflow="fold")
    for row in rows:
        result.add_row(row.kind, row.model, row.case, in_words(row))
    return result


def read_rows(paths: Sequence[Path]) -> list[Row]:
    """The rows of earlier runs."""
    rows: list[Row] = []
    for path in paths:
        earlier = json.loads(path.read_text())
        here = machine()["device"]
        found = earlier.get("machine", {}).get("device", here)
        if found != here:
            raise SystemExit(f"{path} was measured on {found}, this is {here}: rows of two machines make no ratio")
        rows += [Row(**row) for row in earlier["rows"]]
    return rows


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "device": device,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", action="append", default=[], metavar="NAME=FOLDER", help="may be given several times"
    )
    parser.add_argument("--only", nargs="+", choices=KINDS, metavar="ROW", help=", ".join(KINDS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here after each of them")
    parser.add_argument("--join", type=Path, nargs="+", default=[], metavar="FILE", help="rows of earlier runs, kept")
    parser.add_argument("--repeats", type=int, default=3, help="timed repeats after a warm-up; the median counts")
    parser.add_argument("--groups", type=int, help="groups of the multi-turn update (24)")
    parser.add_argument("--steps", type=int, help="timed GRPO steps after the warm-up (5)")
    parser.add_argument("--gsm8k", type=Path, metavar="FILE", help="GSM8K rows: .jsonl, .jsonl.xz or .parquet")
    parser.add_argument("--rewards", nargs="+", choices=list(REWARDS), default=list(REWARDS), help="of the GRPO step")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="trainer.compile (on with a GPU)")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="overrides of the training rows")
    parser.add_argument("--engine", type=json.loads, default={}, metavar="JSON", help="more arguments of LocalEngine")
    parser.add_argument("--peak-tflops", type=float, help="dense bfloat16 peak of the GPU (989 on H100 and H200)")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and tiny sizes")
    peer = parser.add_argument_group("the peer")
    peer.add_argument("--peer", choices=["vllm"], help="measure it too")
    peer.add_argument("--peer-python", default=sys.executable, metavar="FILE", help="the Python that has it")
    peer.add_argument("--peer-path", default="", metavar="FOLDER", help="put before PYTHONPATH")
    peer.add_argument("--peer-memory", type=float, default=0.8, help="gpu_memory_utilization")
    peer.add_argument("--peer-engine", type=json.loads, default={}, metavar="JSON", help="more arguments of vllm.LLM")
    peer.add_argument("--peer-sampling", type=json.loads, default={}, metavar="JSON", help="... of SamplingParams")
    peer.add_argument("--peer-timeout", type=float, default=900.0, metavar="SECONDS", help="for one model")
    chosen = parser.parse_args(arguments)
    if not chosen.model and not chosen.tiny:
        parser.error("give at least one --model NAME=FOLDER, or --tiny")
    if "peer" in (chosen.only or ()):
        chosen.peer = "vllm"
    return chosen


def make_bench(chosen: argparse.Namespace) -> Bench:
    """What the command line asks for."""
    sizes = TINY if chosen.tiny else FULL
    if chosen.groups is not None:
        sizes = replace(sizes, conversations=replace(sizes.conversations, groups=chosen.groups))
    if chosen.steps is not None:
        sizes = replace(sizes, step=replace(sizes.step, steps=chosen.steps))
    device = choose_device("auto")
    compiled = chosen.compile if chosen.compile is not None else device.type == "cuda"
    peer = Peer(
        python=chosen.peer_python,
        path=chosen.peer_path,
        engine={"gpu_memory_utilization": chosen.peer_memory, **chosen.peer_engine},
        sampling=chosen.peer_sampling,
        timeout=chosen.peer_timeout,
    )
    return Bench(
        sizes=sizes,
        device=device,
        repeats=chosen.repeats,
        overrides=(f"trainer.compile={str(compiled).lower()}", *chosen.set),
        peak_tflops=chosen.peak_tflops or known_peak(),
        engine=chosen.engine,
        gsm8k=chosen.gsm8k,
        rewards=tuple(chosen.rewards),
        tiny=chosen.tiny,
        peer=peer if chosen.peer else None,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    chosen = parse(arguments)
    # A pipe has no width: the table would be folded at 80.
    bench, console = make_bench(chosen), Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    rows = read_rows(chosen.join)
    settings = {name: str(value) for name, value in vars(chosen).items()}
    with tempfile.TemporaryDirectory() as folder:
        models = [parse_model(text) for text in chosen.model] or [tiny_model(Path(folder))]
        for row in measure_all(bench, models, chosen.only or KINDS):
            rows = with_ratios([*rows, row])
            console.print(f"{row.model}  {row.kind}  {row.case}: {in_words(rows[-1])}", markup=False, soft_wrap=True)
            if chosen.json is not None:
                result = {"machine": machine(), "settings": settings, "rows": [asdict(entry) for entry in rows]}
                write_atomically(chosen.json, json.dumps(result, indent=2) + "\n")
    console.print()
    console.print(table(rows))


if __name__ == "__main__":
    # Asked to end, the script ends its peer too, which would keep the GPU.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    main()
