"""The scheduler against a slow one that hashes every prefix from its beginning and marks whole paths at every use.

Both get the same requests in the same order; what they compute in each step, and which blocks share a prefix, is the
same. `SlowCache` and `SlowScheduler` are the oracle: plain tuples of tokens, nothing remembered between calls.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_r1.engines.local.blocks import BLOCK_SIZE, BlockPool
from agent_r1.engines.local.prefix_cache import ROOT, PrefixCache
from agent_r1.engines.local.request import Chunk, Request, block_keys, check_request
from agent_r1.engines.local.scheduler import Scheduler
from agent_r1.errors import EngineRequestError
from agent_r1.types import SamplingParams, TokenIds
from tests.helpers.fuzzing import cases

Step = list[tuple[int, int, int, int, bool]]
"""Of each chunk: its request's number, start, length, new tokens, and whether its token is pending."""


class SlowCache(PrefixCache):
    """The same tree, found by walking whole tuples of tokens."""

    def match(self, keys: Iterable[bytes]) -> list[int]:
        prefixes = self._prefixes()
        blocks, prefix = list[int](), b""
        for key in keys:
            prefix += key
            if prefix not in prefixes:
                break
            blocks.append(prefixes[prefix])
        if blocks:
            self._touch(blocks[-1])
        self._pool.share(blocks)
        return blocks

    def insert(self, keys: Sequence[bytes], blocks: list[int], *, num_known: int = 0) -> list[int]:
        held = super().insert(keys, blocks, num_known=0)
        if keys:
            self._touch(held[len(keys) - 1])
        return held

    def _prefixes(self) -> dict[bytes, int]:
        found = {}
        for node in self._recency:
            prefix, ancestor = b"", node
            while ancestor != ROOT:
                ancestor, own = self._recency[ancestor]
                prefix = own + prefix
            found[prefix] = node
        return found


class SlowScheduler(Scheduler):
    """Skips a request when any prefix of its prompt that it would compute is being computed."""

    def __init__(self, **sizes: int) -> None:
        super().__init__(**sizes)
        self.cache = SlowCache(self.pool)

    def _admit(self, budget: int, chunks: list[Chunk]) -> None:
        if self._is_full and self._finished:
            self.release_finished()
        if not self.waiting or self._is_full:
            return
        being_computed = {
            prefix
            for request in self.running
            if request.num_computed < len(request.prompt)
            for prefix in _prefixes(request.prompt)[request.num_computed // BLOCK_SIZE :]
        }
        skipped: list[Request] = []
        while self.waiting and budget and len(self.running) < self._max_requests:
            request = self.waiting.popleft()
            blocks = self.cache.match(block_keys(request.tokens)[: (len(request.tokens) - 1) // BLOCK_SIZE])
            following = _prefixes(request.prompt)[len(blocks) :]
            if following and following[0] in being_computed:
                self.pool.release(blocks)
                skipped.append(request)
                continue
            if not self._start(request, blocks):
                self.pool.release(blocks)
                skipped.append(request)
                break
            being_computed.update(following)
            budget -= self._add_chunk(request, budget, chunks)
        self.waiting.extendleft(reversed(skipped))

    def _decode_ahead(self, pending: dict[Request, Chunk]) -> list[Chunk]:
        chunks, num_missing = list[Chunk](), 0
        for request in self.running:
            previous = pending.get(request)
            if previous is None and request.num_remaining != 1:
                return []
            start = request.num_computed if previous is None else previous.end + previous.new_tokens - 1
            sampled = request.num_sampled if previous is None else previous.num_sampled + previous.new_tokens
            new_tokens = min(self._burst, request.sampling.max_tokens - sampled)
            if new_tokens > 0:
                num_missing += max(0, -(-(start + new_tokens) // BLOCK_SIZE) - len(request.blocks))
                chunks.append(Chunk(request, start, 1, new_tokens, pending_token=previous is not None))
        if not self._make_room(num_missing):
            return []
        for chunk in chunks:
            while len(chunk.request.blocks) * BLOCK_SIZE < chunk.start + chunk.new_tokens:
                chunk.request.blocks += self.pool.allocate(1)
        return chunks


def _prefixes(prompt: TokenIds) -> list[TokenIds]:
    return [prompt[:end] for end in range(BLOCK_SIZE, len(prompt) + 1, BLOCK_SIZE)]


class Play:
    """A scheduler and its requests; steps are computed at once, their tokens given one step later, as on a GPU."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.requests: list[Request] = []
        self._pending: list[Chunk] = []

    def add(self, prompt: TokenIds, max_tokens: int) -> None:
        self.requests.append(Request(prompt=prompt, sampling=SamplingParams(max_tokens=max_tokens, stop=(1,))))
        self.scheduler.add(self.requests[-1])

    def step(self) -> Step:
        """Start a step, then give the tokens of the one before."""
        before, scheduler = self._pending, self.scheduler
        chunks = scheduler.schedule_ahead(before) if before else scheduler.schedule()
        scheduler.mark_computed([chunk for chunk in chunks if not chunk.pending_token])
        self._pending = chunks
        for chunk in before:
            if chunk.samples and chunk.request in scheduler.running:
                self._accept(chunk)
        scheduler.release_finished()
        return [(self.requests.index(c.request), *c[1:]) for c in chunks]

    def _accept(self, chunk: Chunk) -> None:
        request = chunk.request
        number = self.requests.index(request)
        rng = random.Random(number * 1000 + request.num_sampled)
        tokens = [rng.choice([1, 2, 3, 4, 5, 6, 7, 8]) for _ in range(chunk.new_tokens)]
        count = request.append(tokens, [0.0] * len(tokens), 0)
        request.num_computed = chunk.end + count - 1
        if request.finished:
            self.scheduler.finish(request)
        else:
            self.scheduler.cache_full_blocks(request)

    def state(self) -> list[object]:
        """Which requests wait and run, how much of each is computed, and which blocks are shared."""
        names: dict[int, int] = {}
        scheduler = self.scheduler
        return [
            [self.requests.index(request) for request in scheduler.waiting],
            [self.requests.index(request) for request in scheduler.running],
            [(r.num_computed, r.num_cached_blocks, len(r.tokens)) for r in self.requests],
            [[names.setdefault(block, len(names)) for block in request.blocks] for request in self.requests],
            (scheduler.pool.num_free, len(scheduler.cache), scheduler.num_preemptions),
            (scheduler.cache.query_tokens, scheduler.cache.hit_tokens),
        ]


PROMPTS = st.tuples(st.integers(2, 4), st.integers(1, 60), st.integers(0, 3)).map(
    lambda parts: (parts[0],) * 20 + (7,) * parts[1] + (8,) * parts[2]
)
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("add"), PROMPTS, st.integers(1, 40)),
        st.tuples(st.just("again"), st.integers(0, 20), st.integers(1, 20)),
        st.tuples(st.just("step"), st.integers(1, 8), st.just(0)),
        st.tuples(st.just("reset"), st.just(0), st.just(0)),
    ),
    max_size=25,
)


@pytest.mark.whole
@settings(max_examples=cases(300), deadline=None)
@given(moves=MOVES, burst=st.sampled_from([1, 8]), prefill_tokens=st.sampled_from([16, 48, 1000]))
def test_the_scheduler_plans_what_the_slow_one_plans(
    moves: list[tuple[str, TokenIds | int, int]], burst: int, prefill_tokens: int
) -> None:
    """With blocks for all tokens: which cached block is evicted first is not part of the plan."""
    sizes = {"num_blocks": 2000, "max_requests": 4, "prefill_tokens": prefill_tokens, "burst": burst}
    fast, slow = Play(Scheduler(**sizes)), Play(SlowScheduler(**sizes))
    for move, what, count in [*moves, ("step", 40, 0)]:
        for play in (fast, slow):
            if move == "add":
                play.add(what, count)  # type: ignore[arg-type]
            elif move == "again" and play.requests:  # a later turn of a conversation
                earlier = play.requests[int(what) % len(play.requests)]  # type: ignore[arg-type]
                play.add((*earlier.tokens, 9, 9, 9), count)
            elif move == "reset":
                play._pending = []
                play.scheduler.reset()
        for _ in range(int(what) if move == "step" else 0):  # type: ignore[arg-type]
            assert fast.step() == slow.step()
            assert fast.state() == slow.state()


@settings(max_examples=cases(120), deadline=None)
@given(prompts=st.lists(PROMPTS, min_size=1, max_size=8), num_blocks=st.integers(8, 20), seed=st.integers(0, 99))
def test_when_blocks_run_out_every_request_is_still_answered(
    prompts: list[TokenIds], num_blocks: int, seed: int
) -> None:
    play = Play(Scheduler(num_blocks=num_blocks, max_requests=4, prefill_tokens=64, burst=8))
    for prompt in prompts:
        play.add(prompt, 1 + seed % 17)
    for _ in range(600):
        if not play.scheduler.has_work:
            break
        play.step()
    assert all(request.finished for request in play.requests)
    assert play.scheduler.pool.num_held == len(play.scheduler.cache)


def test_a_path_counts_as_used_when_its_last_owner_leaves() -> None:
    pool = BlockPool(4)
    cache = PrefixCache(pool)
    first, second = block_keys((1,) * 32), block_keys((2,) * 32)
    old, new = cache.insert(first, pool.allocate(2)), cache.insert(second, pool.allocate(2))
    cache.leave(new, 2)
    cache.leave(old, 2)
    assert cache.evict(2) == 2
    assert (cache.match(first), cache.match(second)) == (old, [])


@pytest.mark.parametrize("wrong", [-1, 60, 2**31, 2**70])
def test_an_id_outside_the_vocabulary_is_refused_with_the_range_of_ids(wrong: int) -> None:
    request = Request(prompt=(5, wrong, 7), sampling=SamplingParams(max_tokens=4))
    with pytest.raises(EngineRequestError, match=f"token ids from {min(5, wrong)} to {max(7, wrong)}; .* 0 to 59"):
        check_request(request, context_length=100, num_blocks=10, vocabulary=60)


def test_the_keys_of_a_request_grow_with_its_tokens() -> None:
    request = Request(prompt=tuple(range(30)), sampling=SamplingParams(max_tokens=40))
    assert request.keys(1) == block_keys(range(16))
    request.append(list(range(30, 50)), [0.0] * 20, 0)
    assert request.keys(3) == block_keys(range(50))
