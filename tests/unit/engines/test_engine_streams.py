"""Streams of the engine: the tokens of `generate` as they are sampled, and nothing held after a stream is closed."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from transformers import LlamaForCausalLM

from agent_r1.engines import Engine, ScriptedEngine, StreamedTokens, StreamingEngine, stream_completion
from agent_r1.engines.local import LocalEngine
from agent_r1.errors import EngineError
from agent_r1.types import SamplingParams, TokenIds

PROMPT: TokenIds = tuple(range(3, 43))


async def read(engine: Engine, sampling: SamplingParams, prompt: TokenIds = PROMPT) -> list[StreamedTokens]:
    async with aclosing(stream_completion(engine, prompt, sampling)) as stream:
        return [new async for new in stream]


def free_blocks(engine: LocalEngine) -> int:
    """Blocks that no request holds: free ones and those that only the prefix cache has."""
    scheduler = engine._scheduler
    return scheduler.pool.num_free + scheduler.cache.evict(10**6)


@pytest.mark.whole
@pytest.mark.parametrize("stop", [(), (7, 11, 90)])
def test_a_stream_is_the_completion_in_pieces(tiny_model: LlamaForCausalLM, stop: TokenIds) -> None:
    async def run() -> None:
        engine = LocalEngine(tiny_model, max_requests=4)
        settings = [SamplingParams(max_tokens=20, seed=seed, stop=stop) for seed in range(6)]
        plain = await asyncio.gather(*(engine.generate(PROMPT, sampling) for sampling in settings))
        streams = await asyncio.gather(*(read(engine, sampling) for sampling in settings))
        for records, completion in zip(streams, plain, strict=True):
            assert records[-1].completion == completion
            assert all(record.completion is None for record in records[:-1])
            assert sum((record.token_ids for record in records), ()) == completion.token_ids
            assert sum((record.logprobs for record in records), ()) == completion.logprobs
            assert len(records) == len(completion.token_ids), "each step of the engine is seen"

    asyncio.run(run())


def test_a_closed_stream_frees_its_blocks_at_once(tiny_model: LlamaForCausalLM) -> None:
    async def run() -> None:
        engine = LocalEngine(tiny_model, max_requests=4)
        everything = free_blocks(engine)
        async with aclosing(engine.stream(PROMPT, SamplingParams(max_tokens=100))) as stream:
            await anext(stream)
            assert free_blocks(engine) < everything
        assert free_blocks(engine) == everything
        assert not engine._scheduler.has_work

    asyncio.run(run())


def test_a_cancelled_reader_frees_its_blocks_and_disturbs_no_other(tiny_model: LlamaForCausalLM) -> None:
    async def run() -> None:
        engine = LocalEngine(tiny_model, max_requests=1)
        everything = free_blocks(engine)
        expected = await engine.generate(PROMPT, SamplingParams(max_tokens=8, seed=5))
        running = asyncio.create_task(read(engine, SamplingParams(max_tokens=100)))
        waiting = asyncio.create_task(read(engine, SamplingParams(max_tokens=100)))
        last = asyncio.create_task(read(engine, SamplingParams(max_tokens=8, seed=5)))
        while not engine._scheduler.running:
            await asyncio.sleep(0)
        running.cancel()
        waiting.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
        assert len(engine._futures) == 1
        assert (await last)[-1].completion == expected
        while engine._serve_task is not None and not engine._serve_task.done():
            await asyncio.sleep(0)
        assert free_blocks(engine) == everything

    asyncio.run(run())


def test_a_stream_that_is_never_read_submits_nothing(tiny_model: LlamaForCausalLM) -> None:
    async def run() -> None:
        engine = LocalEngine(tiny_model, max_requests=1)
        stream = engine.stream(PROMPT, SamplingParams())
        assert not engine._scheduler.has_work
        await stream.aclose()

    asyncio.run(run())


def test_a_stream_raises_what_generate_would(tiny_model: LlamaForCausalLM) -> None:
    async def run() -> None:
        engine = LocalEngine(tiny_model, max_requests=1)
        with pytest.raises(EngineError, match="the prompt is empty"):
            await read(engine, SamplingParams(), prompt=())
        reader = asyncio.create_task(read(engine, SamplingParams(max_tokens=100)))
        while not engine._scheduler.running:
            await asyncio.sleep(0)
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            await reader

    asyncio.run(run())


def test_an_engine_that_cannot_stream_gives_everything_at_the_end(tiny_model: LlamaForCausalLM) -> None:
    engine = ScriptedEngine([[5, 6, 2]])
    assert not isinstance(engine, StreamingEngine)
    assert isinstance(LocalEngine(tiny_model, max_requests=1), StreamingEngine)
    [only] = asyncio.run(read(engine, SamplingParams(stop=(2,))))
    assert only.token_ids == (5, 6, 2)
    assert only.completion is not None
    assert only.completion.finish_reason == "stop"
