"""`ScriptedEngine`."""

from __future__ import annotations

import asyncio

import pytest

from agent_r1.engines import ScriptedEngine
from agent_r1.errors import EngineError
from agent_r1.types import (
    SamplingParams,
    TokenIds,
)


def test_scripted_engine_cuts_at_the_stop_id_and_at_the_limit() -> None:
    async def run() -> list[tuple[TokenIds, str]]:
        engine = ScriptedEngine([[5, 2, 9], [5, 6, 7], [5, 6, 2]])
        sampling = SamplingParams(max_tokens=2, stop=(2,))
        completions = [await engine.generate([1], sampling) for _ in range(3)]
        return [(completion.token_ids, completion.finish_reason) for completion in completions]

    assert asyncio.run(run()) == [((5, 2), "stop"), ((5, 6), "length"), ((5, 6), "length")]


def test_scripted_engine_gives_each_of_several_requests_at_once_its_own_reply() -> None:
    async def run() -> list[TokenIds]:
        engine = ScriptedEngine([[5, 2], [6, 2], [7, 2]])
        requests = (engine.generate([1], SamplingParams(stop=(2,))) for _ in range(3))
        return [completion.token_ids for completion in await asyncio.gather(*requests)]

    assert asyncio.run(run()) == [(5, 2), (6, 2), (7, 2)]


def test_scripted_engine_says_when_its_script_is_over_and_when_a_prompt_does_not_fit() -> None:
    engine = ScriptedEngine([], context_length=3)
    with pytest.raises(EngineError, match="0 replies but 1 were asked for"):
        asyncio.run(engine.generate([1], SamplingParams()))
    with pytest.raises(EngineError, match="does not fit a context of 3"):
        asyncio.run(engine.generate([1, 2, 3], SamplingParams()))


def test_scripted_engine_reports_the_version_of_its_weights() -> None:
    async def run() -> tuple[int, tuple[int, ...]]:
        engine = ScriptedEngine(lambda prompt, sampling: [len(prompt), 2])
        await engine.update_weights([], version=7)
        completion = await engine.generate([1, 1, 1], SamplingParams(stop=(2,)))
        return completion.token_ids[0], completion.policy_versions

    assert asyncio.run(run()) == (3, (7, 7))
