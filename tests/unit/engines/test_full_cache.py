"""Conversations that do not fit the KV cache together: some continue while the others wait, and none waits for ever."""

from __future__ import annotations

import asyncio
import random

import pytest
from transformers import LlamaForCausalLM

from agent_r1.engines.local import LocalEngine
from agent_r1.engines.local.blocks import BLOCK_SIZE
from agent_r1.engines.local.request import Request
from agent_r1.engines.local.scheduler import PATIENCE, Scheduler
from agent_r1.types import Completion, SamplingParams, TokenIds
from benchmarks.common.played_conversations import (
    FirstComeFirstServed,
    PlayedConversations,
    computed_tokens,
    scheduler_of,
)


def test_a_cache_that_holds_half_of_the_conversations_computes_hardly_more_than_one_that_holds_all() -> None:
    ideal = computed_tokens(Scheduler, tokens=40_000)
    assert computed_tokens(Scheduler, tokens=12_000) < 1.4 * ideal
    assert computed_tokens(FirstComeFirstServed, tokens=12_000) > 6 * ideal


def test_a_cache_with_room_for_all_computes_the_same_in_both_orders() -> None:
    assert computed_tokens(Scheduler, tokens=40_000) == computed_tokens(FirstComeFirstServed, tokens=40_000)


@pytest.mark.parametrize("tokens", [1_000, 3_000, 6_000])
def test_every_conversation_comes_to_its_end_in_a_small_cache(tokens: int) -> None:
    play = PlayedConversations(scheduler_of(Scheduler, tokens=tokens), count=12, turns=20)
    play.play()
    assert play.scheduler.pool.num_held == len(play.scheduler.cache)


def test_what_waits_with_cached_blocks_starts_before_what_came_earlier() -> None:
    scheduler = scheduler_of(Scheduler, tokens=160, max_requests=4)
    talk = PlayedConversations(scheduler, count=0, turns=1)
    talk.said, talk.turns_of, talk.turns = [talk.ids(100)], [0], 2
    talk.speak(0)
    stranger = Request(prompt=tuple(talk.ids(120)), sampling=SamplingParams(max_tokens=8))
    scheduler.add(stranger)
    while talk.turns_of[0] < 1:
        talk.step()
        assert stranger not in scheduler.running  # there is no room for both
    assert [request.prompt[:100] for request in scheduler.continuing] == [tuple(talk.said[0][:100])]
    talk.step()
    assert list(scheduler.waiting) == [stranger]


def test_whoever_came_first_is_not_overtaken_for_ever() -> None:
    """One conversation fills the cache and always has more to say."""
    scheduler = scheduler_of(Scheduler, tokens=448, max_requests=2)
    talk = PlayedConversations(scheduler, count=1, turns=10_000, opening=300, longest=300)
    talk.speak(0)
    talk.step()
    stranger = Request(prompt=tuple(talk.ids(200)), sampling=SamplingParams(max_tokens=8))
    talk.speaker_of[stranger] = 0
    scheduler.add(stranger)
    while stranger in scheduler.waiting:
        talk.step()
        assert talk.turns_of[0] <= 2 * PATIENCE + 2, "it waits for ever"
    assert talk.turns_of[0] > PATIENCE, "it was overtaken"


def test_a_stranger_is_served_while_others_give_up_their_blocks_all_the_time() -> None:
    """Whoever gives its blocks up waits behind the stranger, not before it."""
    scheduler = scheduler_of(Scheduler, tokens=504, max_requests=3)
    talk = PlayedConversations(scheduler, count=2, turns=10_000, opening=227, longest=330)
    for speaker in range(2):
        talk.speak(speaker)
    talk.step()
    stranger = Request(prompt=tuple(talk.ids(261)), sampling=SamplingParams(max_tokens=8))
    talk.speaker_of[stranger] = 0
    scheduler.add(stranger)
    while stranger not in scheduler.running:
        talk.step()
        assert sum(talk.turns_of) <= 3 * PATIENCE * 3, "it waits for ever"


def group_tokens(kind: type[Scheduler], tokens: int) -> int:
    """Prompt tokens computed for 12 groups of 8, 4 at a time: 320 tokens that all share and 240 of each group."""
    scheduler = kind(num_blocks=tokens // BLOCK_SIZE, max_requests=32, prefill_tokens=4096, burst=8)
    talk = PlayedConversations(scheduler, count=0, turns=1)
    system, total, waiting = talk.ids(320), 0, 12
    left: dict[int, int] = {}
    group_of: dict[Request, int] = {}

    def begin() -> None:
        nonlocal waiting
        waiting -= 1
        left[waiting], prompt = 8, tuple(system + talk.ids(240))
        for _ in range(8):
            request = Request(prompt=prompt, sampling=SamplingParams(max_tokens=64))
            group_of[request] = waiting
            scheduler.add(request)

    for _ in range(4):
        begin()
    while scheduler.has_work:
        chunks = scheduler.schedule()
        scheduler.mark_computed(chunks)
        total += sum(chunk.length for chunk in chunks if chunk.length > 1)
        for chunk in chunks:
            if chunk.samples:
                request = chunk.request
                request.num_computed += request.append(talk.ids(chunk.new_tokens), [0.0] * chunk.new_tokens, 0) - 1
                if request.finished:
                    scheduler.finish(request)
                    left[group_of[request]] -= 1
                    if not left[group_of[request]] and waiting:
                        begin()
                else:
                    scheduler.cache_full_blocks(request)
        scheduler.release_finished()
    return total


def test_a_group_computes_its_prompt_once_also_when_the_cache_is_short() -> None:
    ample = group_tokens(Scheduler, 40_000)
    assert group_tokens(Scheduler, 5_000) == ample == group_tokens(FirstComeFirstServed, 5_000)


def test_new_weights_are_no_preemption() -> None:
    scheduler = scheduler_of(Scheduler, tokens=4_000)
    talk = PlayedConversations(scheduler, count=8, turns=1)
    for speaker in range(8):
        talk.speak(speaker)
    talk.step()
    scheduler.reset()
    assert (len(scheduler.waiting), scheduler.num_preemptions) == (8, 0)


def play_engine(tiny_model: LlamaForCausalLM, kv_memory: int) -> tuple[list[list[Completion]], LocalEngine]:
    """Eight conversations of six turns at once."""
    engine = LocalEngine(tiny_model, kv_memory=kv_memory, prefill_tokens=256)

    async def converse(number: int) -> list[Completion]:
        rng = random.Random(number)
        said: TokenIds = tuple(rng.choices(range(2, 60), k=70))
        answers = []
        for turn in range(6):
            sampling = SamplingParams(max_tokens=6, seed=100 * number + turn)
            answers.append(await engine.generate(said, sampling))
            said += answers[-1].token_ids + tuple(rng.choices(range(2, 60), k=20))
        return answers

    async def play() -> list[list[Completion]]:
        return list(await asyncio.gather(*map(converse, range(8))))

    return asyncio.run(play()), engine


def test_a_full_cache_changes_no_token_and_no_logprob(tiny_model: LlamaForCausalLM) -> None:
    expected, roomy = play_engine(tiny_model, 4000)
    found, crowded = play_engine(tiny_model, 700)
    for one, other in zip(found, expected, strict=True):
        assert [answer.token_ids for answer in one] == [answer.token_ids for answer in other]
        for answer, same in zip(one, other, strict=True):
            assert answer.logprobs == pytest.approx(same.logprobs, abs=1e-4)
    assert (roomy.stats.preemptions, crowded.stats.preemptions > 0) == (0, True)
    assert crowded.stats.computed_tokens < 2 * roomy.stats.computed_tokens


def test_hits_of_the_prefix_cache_and_preemptions_are_counted_since_they_were_last_read(
    tiny_model: LlamaForCausalLM,
) -> None:
    engine = LocalEngine(tiny_model, kv_memory=1000)
    first = tuple(range(2, 42))

    async def ask(prompt: TokenIds) -> Completion:
        return await engine.generate(prompt, SamplingParams(max_tokens=1))

    async def both() -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
        await ask(first)
        fresh = engine.metrics()
        await ask((*first, 5, 6))
        return fresh, engine.metrics(), engine.metrics()

    fresh, again, idle = asyncio.run(both())
    assert fresh == {"perf/preemptions": 0.0, "perf/prefix_hits": 0.0}
    assert again == {"perf/preemptions": 0.0, "perf/prefix_hits": 32 / 42}  # two full blocks
    assert idle == {"perf/preemptions": 0.0}


def test_counts_begin_anew_after_a_failure_of_the_whole_engine(tiny_model: LlamaForCausalLM) -> None:
    engine = LocalEngine(tiny_model, kv_memory=1000)

    async def fail_and_ask() -> None:
        for seed in range(3):
            await engine.generate(range(2, 42), SamplingParams(max_tokens=1, seed=seed))
        engine._fail_all("a test")
        await engine.generate(range(2, 42), SamplingParams(max_tokens=1))

    asyncio.run(fail_and_ask())
    assert engine.metrics() == {"perf/preemptions": 0.0, "perf/prefix_hits": 0.0}
