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


class FirstComeFirstServed(Scheduler):
    """What there was before: the order of arrival, whatever is in the cache."""

    def add(self, request: Request) -> None:
        self.waiting.append(request)


class Conversations:
    """Turns of 8 sampled tokens and answers of 24, played on a scheduler without a model."""

    def __init__(
        self, scheduler: Scheduler, *, count: int, turns: int, opening: int = 96, longest: int | None = None
    ) -> None:
        self.scheduler, self.turns, self.longest = scheduler, turns, longest
        self.computed = 0
        self._rng = random.Random(0)
        self.said: list[list[int]] = [self._ids(opening) for _ in range(count)]
        self.turns_of = [0] * count
        self._speaker: dict[Request, int] = {}

    def _ids(self, count: int) -> list[int]:
        return self._rng.choices(range(10_000), k=count)

    def play(self, max_steps: int = 20_000) -> int:
        """Play all to their end; returns how many tokens were computed."""
        for speaker in range(len(self.said)):
            self._speak(speaker)
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                break
            self._step()
        assert self.turns_of == [self.turns] * len(self.said)
        return self.computed

    def _speak(self, speaker: int) -> None:
        request = Request(prompt=tuple(self.said[speaker]), sampling=SamplingParams(max_tokens=8))
        self._speaker[request] = speaker
        self.scheduler.add(request)

    def _step(self) -> None:
        scheduler = self.scheduler
        chunks = scheduler.schedule()
        scheduler.mark_computed(chunks)
        self.computed += sum(chunk.length for chunk in chunks)
        for chunk in chunks:
            if chunk.samples:
                request = chunk.request
                count = request.append(self._ids(chunk.new_tokens), [0.0] * chunk.new_tokens, 0)
                request.num_computed += count - 1
                self.computed += count - 1
                if request.finished:
                    self._finish(request)
                else:
                    scheduler.cache_full_blocks(request)
        scheduler.release_finished()

    def _finish(self, request: Request) -> None:
        self.scheduler.finish(request)
        speaker = self._speaker.pop(request)
        self.said[speaker] = (request.tokens + self._ids(24))[: self.longest]
        self.turns_of[speaker] += 1
        if self.turns_of[speaker] < self.turns:
            self._speak(speaker)


def scheduler_of(kind: type[Scheduler], *, tokens: int, max_requests: int = 32) -> Scheduler:
    return kind(num_blocks=tokens // BLOCK_SIZE, max_requests=max_requests, prefill_tokens=2048, burst=8)


def computed(kind: type[Scheduler], *, tokens: int) -> int:
    """Tokens of 32 conversations of 20 turns, which have 736 tokens in the end: 23,552 in all."""
    return Conversations(scheduler_of(kind, tokens=tokens), count=32, turns=20).play()


def test_a_cache_that_holds_half_of_the_conversations_computes_hardly_more_than_one_that_holds_all() -> None:
    ideal = computed(Scheduler, tokens=40_000)
    assert computed(Scheduler, tokens=12_000) < 1.4 * ideal
    assert computed(FirstComeFirstServed, tokens=12_000) > 6 * ideal


def test_a_cache_with_room_for_all_computes_the_same_in_both_orders() -> None:
    assert computed(Scheduler, tokens=40_000) == computed(FirstComeFirstServed, tokens=40_000)


@pytest.mark.parametrize("tokens", [1_000, 3_000, 6_000])
def test_every_conversation_comes_to_its_end_in_a_small_cache(tokens: int) -> None:
    play = Conversations(scheduler_of(Scheduler, tokens=tokens), count=12, turns=20)
    play.play()
    assert play.scheduler.pool.num_held == len(play.scheduler.cache)


def test_what_waits_with_cached_blocks_starts_before_what_came_earlier() -> None:
    scheduler = scheduler_of(Scheduler, tokens=160, max_requests=4)
    talk = Conversations(scheduler, count=0, turns=1)
    talk.said, talk.turns_of, talk.turns = [talk._ids(100)], [0], 2
    talk._speak(0)
    stranger = Request(prompt=tuple(talk._ids(120)), sampling=SamplingParams(max_tokens=8))
    scheduler.add(stranger)
    while talk.turns_of[0] < 1:
        talk._step()
        assert stranger not in scheduler.running  # there is no room for both
    assert [request.prompt[:100] for request in scheduler.continuing] == [tuple(talk.said[0][:100])]
    talk._step()
    assert list(scheduler.waiting) == [stranger]


def test_whoever_came_first_is_not_overtaken_for_ever() -> None:
    """One conversation fills the cache and always has more to say."""
    scheduler = scheduler_of(Scheduler, tokens=448, max_requests=2)
    talk = Conversations(scheduler, count=1, turns=10_000, opening=300, longest=300)
    talk._speak(0)
    talk._step()
    stranger = Request(prompt=tuple(talk._ids(200)), sampling=SamplingParams(max_tokens=8))
    talk._speaker[stranger] = 0
    scheduler.add(stranger)
    while stranger in scheduler.waiting:
        talk._step()
        assert talk.turns_of[0] <= 2 * PATIENCE + 2, "it waits for ever"
    assert talk.turns_of[0] > PATIENCE, "it was overtaken"


def test_a_stranger_is_served_while_others_give_up_their_blocks_all_the_time() -> None:
    """Whoever gives its blocks up waits behind the stranger, not before it."""
    scheduler = scheduler_of(Scheduler, tokens=504, max_requests=3)
    talk = Conversations(scheduler, count=2, turns=10_000, opening=227, longest=330)
    for speaker in range(2):
        talk._speak(speaker)
    talk._step()
    stranger = Request(prompt=tuple(talk._ids(261)), sampling=SamplingParams(max_tokens=8))
    talk._speaker[stranger] = 0
    scheduler.add(stranger)
    while stranger not in scheduler.running:
        talk._step()
        assert sum(talk.turns_of) <= 3 * PATIENCE * 3, "it waits for ever"


def group_tokens(kind: type[Scheduler], tokens: int) -> int:
    """Prompt tokens computed for 12 groups of 8, 4 at a time: 320 tokens that all share and 240 of each group."""
    scheduler = kind(num_blocks=tokens // BLOCK_SIZE, max_requests=32, prefill_tokens=4096, burst=8)
    talk = Conversations(scheduler, count=0, turns=1)
    system, total, waiting = talk._ids(320), 0, 12
    left: dict[int, int] = {}
    group_of: dict[Request, int] = {}

    def begin() -> None:
        nonlocal waiting
        waiting -= 1
        left[waiting], prompt = 8, tuple(system + talk._ids(240))
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
                request.num_computed += request.append(talk._ids(chunk.new_tokens), [0.0] * chunk.new_tokens, 0) - 1
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
    talk = Conversations(scheduler, count=8, turns=1)
    for speaker in range(8):
        talk._speak(speaker)
    talk._step()
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


if __name__ == "__main__":  # the table of docs/performance.md
    ideal = computed(Scheduler, tokens=40_000)
    for size in (20_000, 16_000, 12_000, 8_000):
        kinds = (FirstComeFirstServed, Scheduler)
        print(size, *(f"{computed(kind, tokens=size) / ideal:.1f}" for kind in kinds))
