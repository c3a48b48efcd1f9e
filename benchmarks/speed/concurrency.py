"""Hundreds of episodes at once whose tools take their time: wall time against the slowest chain of calls, and memory.

    python benchmarks/speed/concurrency.py --json concurrency.json

An episode makes its calls one after the other; nothing can be done in less time than the slowest episode's own calls
take (`chain`). `ratio` is the wall time over that. `runner`: the calls alone, through the tool runner. `agents`: whole
rollouts with rendering, parsing, environment and reward, of a scripted policy that takes POLICY seconds for an action
(its calls count as well). `episodes`: the same with a policy that takes no time, which no model does: what is left is
the library. `cpu_us` is processor time per tool call. Where `512 * cpu_us` is more than a call takes, the processor is
the limit, not the library's waiting: `floor` is the larger of chain and processor time, and `ratio_to_floor` the wall
time over it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import resource
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the clone: agent_r1, benchmarks, recipes

from agent_r1.chat import ChatRenderer
from agent_r1.engines import ScriptedEngine
from agent_r1.envs import ToolEnv, make_env
from agent_r1.models import freeze_gc
from agent_r1.rewards import reward_functions
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.tools import BaseTool, ToolContext, ToolResponse, ToolResult, ToolRunner
from agent_r1.types import Completion, SamplingParams, Task, TokenIds, ToolCall

CALLS = 4
MEAN = 0.05
POLICY = 0.15
"""512 actions of 60 tokens from the fastest engine we measured (220,000 tokens/s, SmolLM2-135M on one H200)."""
LATENCIES: dict[str, Callable[[random.Random], float]] = {
    "constant": lambda rng: MEAN,
    "pareto": lambda rng: MEAN / 3 * rng.paretovariate(1.5),  # mean 0.05, no variance, one call in 2,000 takes 2.6 s
}


class Slow(BaseTool):
    """A tool that takes the time its call says."""

    name = "slow"
    tool_schema: Mapping[str, Any] = {
        "type": "function",
        "function": {
            "name": "slow",
            "description": "Wait.",
            "parameters": {"type": "object", "properties": {"seconds": {"type": "number"}}},
        },
    }

    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        """Wait, then answer."""
        await asyncio.sleep(args["seconds"])
        return ToolResponse(text="done"), None, {}


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--repeats", type=int, default=3, help="the fastest counts: others use the processors too")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args(arguments)
    renderer = make_renderer()
    rows: list[dict[str, Any]] = []
    print("what      latency   episodes  chain s  wall s  ratio  floor s  to floor  cpu us  peak MB")
    for count in chosen.episodes:
        for latency in LATENCIES:
            for what, measure in (("runner", run_calls), ("agents", run_agents), ("episodes", run_episodes)):
                found = [measure(chains_of(count, latency), renderer) for _ in range(chosen.repeats)]
                row = {"what": what, "latency": latency, "episodes": count, **min(found, key=lambda one: one["wall"])}
                rows.append(row)
                print(
                    f"{what:9} {latency:9} {count:8} {row['chain']:8.2f} {row['wall']:7.2f} {row['ratio']:6.2f} "
                    f"{row['floor']:8.2f} {row['ratio_to_floor']:9.2f} {row['cpu_us']:7.0f} {row['peak_mb']:8.0f}",
                    flush=True,
                )
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(rows, indent=2) + "\n")
    return rows


def make_renderer() -> ChatRenderer:
    """The quickstart's tokenizer and template."""
    from agent_r1.models import train_tokenizer
    from recipes.quickstart.shop import demonstration, draw_basket

    rng = random.Random(0)
    return ChatRenderer(train_tokenizer([demonstration(draw_basket(rng), rng) for _ in range(300)]))


def chains_of(count: int, latency: str) -> list[list[float]]:
    """The seconds of each call of each episode."""
    rng = random.Random(count)
    return [[round(LATENCIES[latency](rng), 4) for _ in range(CALLS)] for _ in range(count)]


def run_calls(chains: Sequence[Sequence[float]], renderer: ChatRenderer | None) -> dict[str, float]:
    """The calls alone, each chain one after the other."""
    slow, runner = Slow(), ToolRunner()

    async def chain(seconds: Sequence[float]) -> None:
        context = ToolContext(task=Task(task_id="t", prompt=()))
        for one in seconds:
            outcome = await runner.call({"slow": slow}, ToolCall(name="slow", arguments={"seconds": one}), context)
            assert outcome.status == "ok"

    async def all_of_them() -> None:
        await asyncio.gather(*map(chain, chains))

    return _timed(all_of_them, chains)


def run_episodes(chains: Sequence[Sequence[float]], renderer: ChatRenderer) -> dict[str, float]:
    """Whole rollouts, timed."""
    work = episodes_of(chains, renderer)  # what it prepares is not timed
    return _timed(lambda: work, chains)


def run_agents(chains: Sequence[Sequence[float]], renderer: ChatRenderer) -> dict[str, float]:
    """Whole rollouts with a policy that takes its time, timed."""
    work = episodes_of(chains, renderer, policy_seconds=POLICY)
    return _timed(lambda: work, chains, others=(CALLS + 1) * POLICY)


class Thinking(ScriptedEngine):
    """Says what it is told, after a while."""

    seconds = 0.0

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """The next reply."""
        await asyncio.sleep(self.seconds)
        return await super().generate(prompt_ids, sampling)


def episodes_of(
    chains: Sequence[Sequence[float]], renderer: ChatRenderer, *, policy_seconds: float = 0.0
) -> Coroutine[Any, Any, None]:
    """Whole rollouts: an action a call, then an answer."""
    end = renderer.stop_ids[0]
    calls = [
        [
            (
                *renderer.encode_rendered(
                    f'<tool_call>{{"name": "slow", "arguments": {{"seconds": {one}}}}}</tool_call>'
                ),
                end,
            )
            for one in seconds
        ]
        + [(*renderer.encode("over"), end)]
        for seconds in chains
    ]
    marks = [renderer.encode(f"chain {number}.") for number in range(len(chains))]
    number_of = {mark: number for number, mark in enumerate(marks)}
    taken = [0] * len(chains)
    longest = max(map(len, marks))

    def reply(prompt: TokenIds, sampling: SamplingParams) -> Sequence[int]:
        at = prompt.index(marks[0][0], offset)
        number = next(number_of[prompt[at : at + n]] for n in range(longest, 0, -1) if prompt[at : at + n] in number_of)
        taken[number] += 1
        return calls[number][taken[number] - 1]

    slow, engine, runner = Slow(), Thinking(reply), ToolRunner()
    engine.seconds = policy_seconds
    tasks = [
        Task(task_id=str(number), prompt=({"role": "user", "content": f"chain {number}."},))
        for number in range(len(chains))
    ]
    rollout = Rollout(
        engine=engine,
        renderer=renderer,
        reward=reward_functions.get("none"),
        make_env=lambda task: make_env(task, {"tools": [slow]}, runner=runner),
        limits=RolloutLimits(max_steps=CALLS + 1, concurrency=len(chains), retries=0),
    )
    # The tools come first in every prompt, and are the same.
    first = renderer.render(ToolEnv([slow]).preview(tasks[0])).token_ids
    offset = next(at for at in range(len(first)) if first[at : at + len(marks[0])] == marks[0])

    async def all_of_them() -> None:
        async with runner:
            groups = await rollout.run(tasks, group_size=1, sampling=SamplingParams(max_tokens=64), seed=0)
        assert all(len(trajectory.steps) == CALLS + 1 for group in groups for trajectory in group)

    return all_of_them()


def _timed(work: Callable[[], Any], chains: Sequence[Sequence[float]], *, others: float = 0.0) -> dict[str, float]:
    usual = gc.get_threshold()
    freeze_gc()  # as a run on a GPU does: the collector's passes over all libraries are no part of a call
    try:
        cpu, started = time.process_time(), time.perf_counter()
        asyncio.run(work())
        wall, cpu = time.perf_counter() - started, time.process_time() - cpu
    finally:
        gc.unfreeze()
        gc.set_threshold(*usual)
    chain = max(map(sum, chains)) + others
    floor = max(chain, cpu)
    return {
        "chain": chain,
        "sum": sum(map(sum, chains)),
        "wall": wall,
        "ratio": wall / chain,
        "floor": floor,
        "ratio_to_floor": wall / floor,
        "cpu_us": 1e6 * cpu / sum(map(len, chains)),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


if __name__ == "__main__":
    main()
