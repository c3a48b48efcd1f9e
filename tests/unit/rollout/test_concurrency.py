"""Many episodes at once: what they take is what the slowest of them takes, and little memory."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

import pytest

from agent_r1.chat import ChatRenderer
from benchmarks.speed import concurrency
from tests.helpers.virtual_clock import seconds_waited


@pytest.mark.whole
@pytest.mark.parametrize("latency", ["constant", "pareto"])
def test_512_episodes_wait_as_long_as_the_slowest_of_them(latency: str, renderer: ChatRenderer) -> None:
    chains = concurrency.chains_of(512, latency)
    waited = seconds_waited(concurrency.episodes_of(chains, renderer))
    assert waited == pytest.approx(max(map(sum, chains)), rel=0.01)


def test_the_time_a_policy_takes_is_waited_once_a_turn_by_all_together(renderer: ChatRenderer) -> None:
    chains = concurrency.chains_of(64, "constant")
    waited = seconds_waited(concurrency.episodes_of(chains, renderer, policy_seconds=0.5))
    assert waited == pytest.approx(concurrency.CALLS * concurrency.MEAN + (concurrency.CALLS + 1) * 0.5, rel=0.01)


@pytest.mark.whole
def test_the_benchmark_counts_the_slowest_chain_and_the_time_it_took(renderer: ChatRenderer) -> None:
    found = concurrency.run_episodes(concurrency.chains_of(8, "constant"), renderer)
    assert found["chain"] == pytest.approx(concurrency.CALLS * concurrency.MEAN)
    assert found["sum"] == pytest.approx(8 * found["chain"])
    assert found["wall"] >= found["chain"]
    assert found["ratio"] == pytest.approx(found["wall"] / found["chain"])
    thinking = concurrency.run_agents([[0.01] * concurrency.CALLS], renderer)
    assert thinking["chain"] == pytest.approx(0.04 + (concurrency.CALLS + 1) * concurrency.POLICY)


@pytest.mark.whole
def test_an_episode_costs_little_memory_however_many_there_are(renderer: ChatRenderer) -> None:
    def peak(count: int) -> int:
        chains = [[0.01] * concurrency.CALLS for _ in range(count)]
        gc.collect()
        tracemalloc.start()
        concurrency.run_episodes(chains, renderer)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    concurrency.run_episodes([[0.001] * concurrency.CALLS], renderer)  # what is made once
    few, many = peak(8), peak(64)
    assert many < 64 * 100_000
    assert many < 12 * few


def test_calls_leave_no_task_behind() -> None:
    async def run() -> int:
        slow, runner = concurrency.Slow(), concurrency.ToolRunner()
        call = concurrency.ToolCall(name="slow", arguments={"seconds": 0.0})
        context = concurrency.ToolContext(task=concurrency.Task(task_id="t", prompt=()))
        await asyncio.gather(*(runner.call({"slow": slow}, call, context) for _ in range(64)))
        return len(asyncio.all_tasks())

    assert asyncio.run(run()) == 1
