"""The engine's memory: blocks are never lost, prefixes are shared, and a full pool changes nothing but time."""

from __future__ import annotations

import asyncio
import os
import random
import struct
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from agent_r1.engines.local import LocalEngine, kv_cache
from agent_r1.engines.local.blocks import BlockPool
from agent_r1.engines.local.kv_cache import kv_blocks
from agent_r1.engines.local.prefix_cache import ROOT, PrefixCache
from agent_r1.engines.local.request import Request, block_keys
from agent_r1.engines.local.scheduler import Scheduler
from agent_r1.errors import DeviceMemoryError, EngineError
from agent_r1.types import Completion, SamplingParams, TokenIds
from tests.helpers.fuzzing import cases

Prompt = tuple[TokenIds, SamplingParams]


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def random_ids(seed: int, length: int) -> TokenIds:
    return tuple(random.Random(seed).choices(range(60), k=length))


async def all_answers(engine: LocalEngine, requests: Sequence[Prompt]) -> list[Completion]:
    return list(await asyncio.gather(*(engine.generate(prompt, sampling) for prompt, sampling in requests)))


def answers(engine: LocalEngine, requests: Sequence[Prompt]) -> list[Completion]:
    return asyncio.run(all_answers(engine, requests))


# --- the prefix cache ----------------------------------------------------------------------------------------------


def filled(cache: PrefixCache, pool: BlockPool, tokens: TokenIds) -> list[int]:
    """A request that computes these tokens and leaves; gives the blocks it had."""
    known = match(cache, tokens)
    new = pool.allocate(-(-len(tokens) // 16) - len(known))
    keys = block_keys(tokens)
    blocks = cache.insert(keys, [*known, *new])
    cache.leave(blocks, len(keys))
    return blocks


def match(cache: PrefixCache, tokens: Sequence[int]) -> list[int]:
    """What a request with these tokens finds: the last one must be computed."""
    return cache.match(block_keys(tokens)[: (len(tokens) - 1) // 16])


def test_the_longest_known_prefix_is_found_but_never_the_last_token() -> None:
    pool = BlockPool(10)
    cache = PrefixCache(pool)
    blocks = filled(cache, pool, tuple(range(50)))
    assert len(cache) == 3
    assert match(cache, range(50)) == blocks[:3]
    assert match(cache, range(49)) == blocks[:3]
    assert match(cache, range(48)) == blocks[:2]
    assert match(cache, (*range(20), 99, *range(21, 50))) == blocks[:1]
    assert match(cache, (99, *range(1, 50))) == []


def test_the_same_block_of_tokens_after_another_prefix_is_another_block() -> None:
    pool = BlockPool(10)
    cache = PrefixCache(pool)
    filled(cache, pool, (1,) * 16 + (7,) * 16)
    filled(cache, pool, (2,) * 16)
    assert len(match(cache, (2,) * 16 + (7,) * 17)) == 1


def test_two_that_computed_the_same_end_up_sharing_it() -> None:
    pool = BlockPool(4)
    cache = PrefixCache(pool)
    first, second = pool.allocate(2), pool.allocate(2)
    assert cache.insert(block_keys(range(32)), list(first)) == first
    assert cache.insert(block_keys(range(32)), second) == first
    assert pool.num_free == 2
    pool.release(first * 2)
    assert pool.num_held == len(cache) == 2


def test_the_least_recently_used_leaf_is_evicted_first() -> None:
    pool = BlockPool(5)
    cache = PrefixCache(pool)
    common = (0,) * 16
    filled(cache, pool, common + (1,) * 16)
    filled(cache, pool, common + (2,) * 16)
    filled(cache, pool, (3,) * 16)
    cache.leave(match(cache, common + (1,) * 16 + (9,)), 2)  # makes the second the oldest
    known = {
        "common": (*common, 9),
        "first": common + (1,) * 16 + (9,),
        "second": common + (2,) * 16 + (9,),
        "third": (3,) * 16 + (9,),
    }

    def survivors() -> set[str]:
        """Looked up in a copy of the tree: looking up makes recent."""
        paths = set()
        for node in cache._recency:
            tokens, ancestor = (9,), node
            while ancestor != ROOT:
                ancestor, own = cache._recency[ancestor]
                tokens = struct.unpack("16i", own) + tokens
            paths.add(tokens)
        return {name for name, tokens in known.items() if tokens in paths}

    for expected in ({"common", "first", "third"}, {"common", "first"}, {"common"}, set()):
        assert cache.evict(1) == 1
        assert survivors() == expected
    assert cache.evict(1) == 0
    assert pool.num_free == 5


def test_a_block_in_use_is_not_evicted() -> None:
    pool = BlockPool(4)
    cache = PrefixCache(pool)
    filled(cache, pool, tuple(range(32)))
    held = match(cache, range(17))
    assert cache.evict(4) == 1
    assert match(cache, range(40)) == held


def test_clearing_leaves_a_request_its_blocks() -> None:
    pool = BlockPool(4)
    cache = PrefixCache(pool)
    filled(cache, pool, tuple(range(32)))
    held = match(cache, range(17))
    cache.clear()
    assert (pool.num_held, len(cache)) == (1, 0)
    pool.release(held)
    assert pool.num_free == 4


# --- nothing leaks -------------------------------------------------------------------------------------------------


def assert_accounted(scheduler: Scheduler) -> None:
    """Every block is free or held, by exactly those who say they hold it."""
    pool = scheduler.pool
    holders = [*scheduler.running, *scheduler.continuing, *scheduler._finished]
    owners = Counter(block for request in holders for block in request.blocks)
    owners.update(list(scheduler.cache._recency))
    assert pool.num_free + pool.num_held == pool.num_blocks
    assert {block: pool.owners(block) for block in owners} == dict(owners)
    assert pool.num_held == len(owners)
    assert 0 not in owners
    assert all(not request.blocks for request in scheduler.waiting)


PROMPTS = st.tuples(st.integers(0, 2), st.integers(1, 70)).map(lambda pair: (pair[0],) * 20 + (7,) * pair[1])
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("add"), PROMPTS, st.integers(1, 40)),
        st.tuples(st.just("again"), st.integers(0, 30), st.integers(1, 20)),
        st.tuples(st.just("step"), st.integers(1, 12), st.just(0)),
        st.tuples(st.just("release"), st.just(0), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("reset"), st.just(0), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=cases(150), deadline=None)
@given(
    moves=MOVES,
    num_blocks=st.integers(9, 30),
    prefill_tokens=st.integers(1, 100),
    max_requests=st.integers(1, 6),
    burst=st.sampled_from([1, 8]),
)
def test_blocks_never_leak_whoever_comes_goes_or_gives_way(
    moves: list[tuple[str, object, int]], num_blocks: int, prefill_tokens: int, max_requests: int, burst: int
) -> None:
    scheduler = Scheduler(num_blocks=num_blocks, max_requests=max_requests, prefill_tokens=prefill_tokens, burst=burst)

    def step() -> None:
        chunks = scheduler.schedule()
        assert_accounted(scheduler)
        assert bool(chunks) == scheduler.has_work
        assert len(scheduler.running) <= max_requests
        written = [
            (chunk.request.blocks[i // 16], i % 16)
            for chunk in chunks
            for i in range(chunk.start, chunk.end + chunk.new_tokens - 1)
        ]
        assert len(set(written)) == len(written), "two tokens share a place"
        scheduler.mark_computed(chunks)
        for chunk in chunks:
            if chunk.samples:
                taken = chunk.request.append([5] * chunk.new_tokens, [0.0] * chunk.new_tokens, 0)
                chunk.request.num_computed += taken - 1
                if chunk.request.finished:
                    scheduler.finish(chunk.request)
        assert_accounted(scheduler)

    everyone: list[Request] = []
    for move, value, max_tokens in moves:
        present = [*scheduler.running, *scheduler.continuing, *scheduler.waiting]
        if move == "add":
            assert isinstance(value, tuple)
            everyone.append(Request(prompt=value, sampling=SamplingParams(max_tokens=max_tokens)))
        elif move == "again" and everyone:  # a later turn of a conversation
            earlier = everyone[int(str(value)) % len(everyone)]
            prompt = (*earlier.tokens, 9, 9, 9)
            everyone.append(Request(prompt=prompt, sampling=SamplingParams(max_tokens=max_tokens)))
        if move in ("add", "again") and everyone:
            if everyone[-1].max_blocks <= num_blocks:
                scheduler.add(everyone[-1])
        elif move == "step":
            for _ in range(int(str(value))):
                step()
        elif move == "release":
            scheduler.release_finished()
        elif move == "cancel" and present:
            scheduler.remove(present[int(str(value)) % len(present)])
        elif move == "reset":
            scheduler.reset()
            assert_accounted(scheduler)
            assert scheduler.pool.num_held == 0
    for _ in range(5000):
        if not scheduler.has_work:
            break
        step()
    assert not scheduler.has_work, "someone waits for ever"
    scheduler.reset()
    assert scheduler.pool.num_free == num_blocks


@pytest.mark.whole
@settings(max_examples=cases(12), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_blocks_never_leak_in_an_engine_whose_requests_are_cancelled(model: LlamaForCausalLM, seed: int) -> None:
    rng = random.Random(seed)

    async def come_and_go() -> LocalEngine:
        engine = LocalEngine(model, max_requests=5, kv_memory=160, prefill_tokens=rng.choice([9, 32, 500]))
        tasks: list[asyncio.Task[Completion]] = []
        for _ in range(60):
            if rng.random() < 0.3:
                prompt = random_ids(rng.randrange(3), 20) + random_ids(rng.randrange(100), rng.randint(1, 60))
                sampling = SamplingParams(max_tokens=rng.randint(1, 40), seed=rng.randrange(100))
                tasks.append(asyncio.create_task(engine.generate(prompt, sampling)))
            if tasks and rng.random() < 0.15:
                rng.choice(tasks).cancel()
            await asyncio.sleep(0)
            assert_accounted(engine._scheduler)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(outcome, Completion | asyncio.CancelledError) for outcome in outcomes)
        return engine

    engine = asyncio.run(come_and_go())
    scheduler = engine._scheduler
    assert_accounted(scheduler)
    assert not scheduler.has_work
    assert scheduler.pool.num_held == len(scheduler.cache)


def test_a_cancelled_request_frees_its_blocks(model: LlamaForCausalLM) -> None:
    async def cancelled() -> tuple[int, int]:
        engine = LocalEngine(model, kv_memory=160)
        task = asyncio.create_task(engine.generate(random_ids(1, 40), SamplingParams(max_tokens=100)))
        while engine.stats.steps < 12:
            await asyncio.sleep(0)
        held = engine._scheduler.pool.num_held
        task.cancel()
        while engine._futures:
            await asyncio.sleep(0)
        return held, engine._scheduler.pool.num_held

    # 40 tokens and 11 new ones are in 4 blocks; the 3 full ones stay in the prefix cache.
    assert asyncio.run(cancelled()) == (4, 3)


# --- prefixes are computed once ------------------------------------------------------------------------------------


@pytest.mark.whole
def test_eight_members_of_a_group_compute_their_prompt_once(model: LlamaForCausalLM) -> None:
    engine = LocalEngine(model)
    prompt = random_ids(1, 100)
    completions = answers(engine, [(prompt, SamplingParams(max_tokens=6, seed=seed)) for seed in range(8)])
    # 100 tokens once, 7 times the 4 that fill no block, and 5 of each member's 6 sampled tokens.
    assert engine.stats.computed_tokens == 100 + 7 * 4 + 8 * 5
    assert engine.stats.prompt_tokens == 800
    assert engine.stats.prefix_tokens == 7 * 96
    assert engine.stats.generated_tokens == 48
    assert engine.stats.steps == 7  # the first member is one step ahead
    for seed, completion in enumerate(completions):
        assert completion == answers(LocalEngine(model), [(prompt, SamplingParams(max_tokens=6, seed=seed))])[0]


def test_members_that_come_while_the_prompt_is_computed_in_chunks_wait_for_it(model: LlamaForCausalLM) -> None:
    engine = LocalEngine(model, prefill_tokens=32)
    prompt = random_ids(1, 100)
    answers(engine, [(prompt, SamplingParams(max_tokens=1, seed=seed)) for seed in range(8)])
    assert engine.stats.computed_tokens == 100 + 7 * 4


def test_other_prompts_do_not_wait_for_a_group(model: LlamaForCausalLM) -> None:
    engine = LocalEngine(model)
    group = [(random_ids(1, 40), SamplingParams(max_tokens=1, seed=seed)) for seed in range(4)]
    other = [(random_ids(2, 40), SamplingParams(max_tokens=1))]
    answers(engine, group + other)
    assert engine.stats.steps == 2


def test_a_later_turn_only_computes_what_is_new(model: LlamaForCausalLM) -> None:
    async def turns() -> tuple[int, int]:
        engine = LocalEngine(model)
        first = await engine.generate(random_ids(1, 70), SamplingParams(max_tokens=30, seed=1))
        before = engine.stats.computed_tokens, engine.stats.prefix_tokens
        following = random_ids(1, 70) + first.token_ids + random_ids(2, 10)
        await engine.generate(following, SamplingParams(max_tokens=1))
        return engine.stats.computed_tokens - before[0], engine.stats.prefix_tokens - before[1]

    # 99 of 100 tokens were computed, which fills 6 blocks.
    assert asyncio.run(turns()) == (110 - 96, 96)


def test_rewritten_history_is_found_up_to_where_it_differs(model: LlamaForCausalLM) -> None:
    rewritten = (random_ids(1, 50) + random_ids(2, 40), SamplingParams(max_tokens=5, seed=3))
    engine = LocalEngine(model)
    answers(engine, [(random_ids(1, 90), SamplingParams(max_tokens=1))])
    assert answers(engine, [rewritten]) == answers(LocalEngine(model), [rewritten])
    assert engine.stats.prefix_tokens == 48


def test_new_weights_empty_the_prefix_cache(model: LlamaForCausalLM) -> None:
    async def turns() -> int:
        engine = LocalEngine(model)
        await engine.generate(random_ids(1, 90), SamplingParams(max_tokens=1))
        await engine.update_weights([], 1)
        await engine.generate(random_ids(1, 90), SamplingParams(max_tokens=1))
        return engine.stats.prefix_tokens

    assert asyncio.run(turns()) == 0


def test_weights_that_were_broken_leave_nothing_behind(model: LlamaForCausalLM) -> None:
    """A block may still hold NaN where the next request has not written yet."""
    request = (random_ids(1, 21), SamplingParams(max_tokens=5, seed=1))
    broken = {name: torch.full_like(tensor, float("nan")) for name, tensor in model.state_dict().items()}

    async def repaired() -> Completion:
        engine = LocalEngine(model, kv_memory=64)
        await engine.update_weights(broken.items(), 1)
        with pytest.raises(EngineError, match="log-probability of nan"):
            await engine.generate(random_ids(2, 40), SamplingParams(max_tokens=9))
        await engine.update_weights(model.state_dict().items(), 0)
        return await engine.generate(*request)

    assert asyncio.run(repaired()) == answers(LocalEngine(model), [request])[0]


# --- a full pool ---------------------------------------------------------------------------------------------------


def ragged_requests(count: int) -> list[Prompt]:
    return [
        (random_ids(index // 3, 5 + 9 * (index // 3)), SamplingParams(max_tokens=10 + 3 * index, seed=index))
        for index in range(count)
    ]


@pytest.mark.whole
@pytest.mark.parametrize("prefill_tokens", [8192, 50, 7])
def test_preemption_changes_no_token_and_no_logprob(model: LlamaForCausalLM, prefill_tokens: int) -> None:
    requests = ragged_requests(14)
    roomy = LocalEngine(model)
    tight = LocalEngine(model, kv_memory=112, prefill_tokens=prefill_tokens)
    expected = answers(roomy, requests)
    assert answers(tight, requests) == expected
    assert roomy.stats.preemptions == 0
    assert tight.stats.preemptions > 3
    assert tight.stats.generated_tokens == roomy.stats.generated_tokens


@pytest.mark.whole
def test_a_request_alone_is_cut_cached_or_preempted_without_a_trace(model: LlamaForCausalLM) -> None:
    """The same bits alone, in chunks of any size, over a prefix from the cache, and among others in a tight pool."""
    request = (random_ids(3, 75), SamplingParams(max_tokens=30, seed=5))
    expected = answers(LocalEngine(model), [request])[0]
    for prefill_tokens in (1, 5, 16, 33, 74):
        assert answers(LocalEngine(model, prefill_tokens=prefill_tokens), [request])[0] == expected
    for shared in (17, 40, 75):
        warm = LocalEngine(model)
        answers(warm, [(random_ids(3, 75)[:shared], SamplingParams(max_tokens=20, seed=9))])
        assert answers(warm, [request])[0] == expected
        assert warm.stats.prefix_tokens == (shared if shared < 75 else 74) // 16 * 16
    crowded = LocalEngine(model, kv_memory=144, prefill_tokens=20)
    assert answers(crowded, [*ragged_requests(6), request, *ragged_requests(12)])[6] == expected
    assert crowded.stats.preemptions > 0


@pytest.mark.whole
def test_the_cache_gives_way_before_a_request_does(model: LlamaForCausalLM) -> None:
    engine = LocalEngine(model, kv_memory=96)
    for seed in range(6):
        answers(engine, [(random_ids(seed, 60), SamplingParams(max_tokens=20, seed=seed))])
    assert engine.stats.preemptions == 0
    assert engine._scheduler.pool.num_free <= 2


def test_a_request_that_can_never_fit_is_refused_and_one_that_just_fits_is_not(model: LlamaForCausalLM) -> None:
    engine = LocalEngine(model, kv_memory=64)
    assert len(answers(engine, [(random_ids(1, 40), SamplingParams(max_tokens=25))])[0].token_ids) == 25
    with pytest.raises(EngineError, match="do not fit the cache of 64 tokens; give the engine more kv_memory"):
        answers(engine, [(random_ids(1, 40), SamplingParams(max_tokens=26))])


@pytest.mark.parametrize(
    ("kv_memory", "expected"),
    [
        pytest.param(1000, 62, id="tokens"),
        # 4 layers x keys and values x 16 tokens x 2 heads x 8 x 4 bytes = 8 KiB a block
        pytest.param(0.5, None, id="fraction"),
        pytest.param(None, 4 * 100 // 16, id="four requests of at most 100 tokens"),
    ],
)
def test_kv_memory_is_tokens_or_a_fraction(kv_memory: float | None, expected: int | None) -> None:
    config = LlamaConfig(num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, hidden_size=32)
    found = kv_blocks(
        kv_memory,
        config=config,
        dtype=torch.float32,
        device=torch.device("cpu"),
        max_requests=4,
        context_length=100,
    )
    if expected is None:
        expected = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 // 8192
    assert found == expected


@pytest.mark.parametrize("kv_memory", [0, -5, float("nan"), 15])
def test_memory_for_no_block_is_refused(model: LlamaForCausalLM, kv_memory: float) -> None:
    with pytest.raises(EngineError, match="kv_memory"):
        LocalEngine(model, kv_memory=kv_memory)


def test_a_cache_that_a_gpu_has_no_memory_for_says_how_large_it_is(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 124.00 MiB.")

    monkeypatch.setattr(kv_cache, "_zeros", full)
    monkeypatch.setattr(kv_cache, "_memory", lambda device: 83_000_000)
    # 2 layers x (keys and values) x 2 heads of 8 x 4 bytes are 256 bytes per token.
    found = r"KV cache of 1600000 tokens takes 0\.4 GB, and 0\.1 GB are free\. Lower engine\.kv_memory"
    with pytest.raises(DeviceMemoryError, match=found):
        LocalEngine(model, kv_memory=1_600_000)
