"""The scheduler: which requests compute which tokens in the next step, and which blocks they hold.

In every step all decoding requests compute their newest token; prompts share the rest of a token budget, in chunks.
Where a step may be a burst (on CUDA), decoding requests sample several tokens in it, and prompts get steps of their
own. When blocks run out, the prefix cache evicts its oldest ones; if that is not enough, the youngest running request
goes back to the queue. It keeps what it sampled and is recomputed later, so no caller sees an error.

When the cache cannot hold all conversations, first come, first served would compute each of them anew in every turn:
the blocks that were not used for longest are evicted, and those are the blocks of whoever is next. So a request that
continues cached blocks holds them while it waits, and starts before others; the last of these gives its blocks up when
they are needed. Some conversations then continue while the rest wait and are computed once more.
"""

from __future__ import annotations

from collections import deque

from agent_r1.engines.local.blocks import BLOCK_SIZE, BlockPool, blocks_for
from agent_r1.engines.local.prefix_cache import ROOT, Edge, PrefixCache
from agent_r1.engines.local.request import Chunk, Request

CONTINUED = 0.5
"""A request that finds at least this share of its tokens in the cache continues them."""
PATIENCE = 8
"""So many times as many requests as run at once may start before one that came earlier."""


class Scheduler:
    """Waiting and running requests over one pool of blocks.

    >>> from agent_r1.types import SamplingParams
    >>> scheduler = Scheduler(num_blocks=8, max_requests=4, prefill_tokens=32)
    >>> request = Request(prompt=tuple(range(40)), sampling=SamplingParams(max_tokens=2))
    >>> scheduler.add(request)
    >>> chunks = scheduler.schedule()
    >>> [(chunk.start, chunk.end) for chunk in chunks]  # the budget cuts the prompt
    [(0, 32)]
    >>> scheduler.mark_computed(chunks)
    >>> [(chunk.start, chunk.end, chunk.samples) for chunk in scheduler.schedule()]
    [(32, 40, True)]
    """

    def __init__(self, *, num_blocks: int, max_requests: int, prefill_tokens: int, burst: int = 1) -> None:
        self.pool = BlockPool(num_blocks)
        self.cache = PrefixCache(self.pool)
        self.waiting: deque[Request] = deque()
        # They wait too, and hold the cached blocks that they continue.
        self.continuing: deque[Request] = deque()
        # In order of admission. A dict, because requests leave from anywhere.
        self.running: dict[Request, None] = {}
        # Requests that are answered and still hold blocks.
        self._finished: list[Request] = []
        self.num_preemptions = 0
        # The head of the queue found too few blocks. Only a request that leaves can change that.
        self._is_full = False
        # Cached blocks were evicted since the queues were last empty: from then on, who continues some starts first.
        self._is_short = False
        # How many have started before the first of `waiting`, which came earlier.
        self._overtaken = 0
        self._max_requests = max_requests
        self._prefill_tokens = prefill_tokens
        self._burst = burst

    @property
    def has_work(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self.waiting or self.continuing or self.running)

    def add(self, request: Request) -> None:
        """Queue a request. It must fit into the pool on its own (`request.max_blocks`)."""
        if self._is_short:
            blocks = self._cached_blocks(request)
            if len(blocks) * BLOCK_SIZE >= CONTINUED * len(request.tokens):
                request.blocks = blocks
                self.continuing.append(request)
                self._is_full = False
                return
            self.pool.release(blocks)
        self.waiting.append(request)

    def remove(self, request: Request) -> None:
        """Drop an unfinished request and free its blocks."""
        if request in self.running:
            del self.running[request]
            self._release(request)
            return
        if request in self.continuing:
            self.continuing.remove(request)
            self._let_go(request)
        else:
            self.waiting.remove(request)
        self._is_full = False  # the next request in the queue may be smaller

    def finish(self, request: Request) -> None:
        """Take an answered request out of the running ones. `release_finished` frees its blocks later."""
        del self.running[request]
        self._finished.append(request)

    def release_finished(self) -> None:
        """Free the blocks of answered requests; full blocks stay in the prefix cache for the turn that continues
        them."""
        finished, self._finished = self._finished, []
        for request in finished:
            self.cache_full_blocks(request)
            self._release(request)

    def cache_full_blocks(self, request: Request) -> None:
        """Enter the blocks that a running request has filled since the last call into the prefix cache.

        Called while the device computes the next step, so that little is left to do when callers wait for answers.
        """
        num_full = request.num_computed // BLOCK_SIZE
        if num_full > request.num_cached_blocks:
            keys = request.keys(num_full)
            keys = keys if len(keys) == num_full else keys[:num_full]
            self.cache.insert(keys, request.blocks, num_known=request.num_cached_blocks)
            request.num_cached_blocks = num_full

    def reset(self) -> None:
        """Drop everything computed: running requests go back to the queue in order of admission, the cache is emptied.

        Finished requests are released first: their blocks cannot enter a prefix cache that lost the earlier ones.
        """
        self.release_finished()
        for request in self.continuing:
            self._let_go(request)
        self.waiting.extendleft(reversed(self.continuing))
        self.continuing.clear()
        for request in reversed(list(self.running)):
            self._preempt(request)
        self.cache.clear()

    def mark_computed(self, chunks: list[Chunk]) -> None:
        """The chunks are in the cache, or will be before any step that is started from now on reads it."""
        for chunk in chunks:
            request = chunk.request
            request.num_computed = chunk.end
            self.cache_full_blocks(request)

    def schedule(self) -> list[Chunk]:
        """What to compute now; empty only when there are no requests.

        Decoding requests and prompts together; with bursts, prompts alone as long as there are any.
        """
        if self._burst == 1:
            chunks = self._decode()
            self._prefill(max(self._prefill_tokens - len(chunks), BLOCK_SIZE), chunks)
            return chunks
        prompts: list[Chunk] = []
        self._prefill(self._prefill_tokens, prompts)
        return prompts or self._decode()

    def schedule_ahead(self, pending: list[Chunk]) -> list[Chunk]:
        """What can be started while the `pending` chunks are still computed; empty when their result is needed first.

        Prompts can: they need no sampled token. So can a burst of decoding, as if no request stopped. A request that
        did stop computes one burst that is thrown away. Blocks it released meanwhile may have a new owner, whose writes
        come later: steps are computed in the order in which they are started.
        """
        if self._burst == 1:
            return []
        prompts: list[Chunk] = []
        self._prefill(self._prefill_tokens, prompts)
        return prompts or self._decode_ahead({chunk.request: chunk for chunk in pending if chunk.samples})

    def _decode_ahead(self, pending: dict[Request, Chunk]) -> list[Chunk]:
        """A burst of all running requests. Those in `pending` continue from the token that is being sampled for them,
        the others from a known token. Empty while a request has more to compute, or when there are too few blocks."""
        chunks, num_missing, growing = list[Chunk](), 0, list[tuple[Request, int]]()
        # Thousands of requests pass here per second: what `Chunk` and `Request` offer as properties is written out.
        for request in self.running:
            previous = pending.get(request)
            if previous is not None:
                start = previous.start + previous.length + previous.new_tokens - 1
                num_left = request.sampling.max_tokens + len(request.prompt) - start - 1
            elif len(request.tokens) - request.num_computed == 1:
                start, num_left = request.num_computed, request.sampling.max_tokens - len(request.logprobs)
            else:
                return []
            new_tokens = min(self._burst, num_left)
            if new_tokens > 0:
                shortage = blocks_for(start + new_tokens) - len(request.blocks)
                if shortage > 0:
                    num_missing += shortage
                    growing.append((request, shortage))
                chunks.append(Chunk(request, start, 1, new_tokens, previous is not None))
        if not self._make_room(num_missing):
            return []
        for request, shortage in growing:
            request.blocks += self.pool.allocate(shortage)
        return chunks

    def _decode(self) -> list[Chunk]:
        chunks: list[Chunk] = []
        for request in list(self.running):
            # A request that is preempted for this one is younger, and so comes after it in the list.
            if len(request.tokens) - request.num_computed == 1 and request in self.running:
                new_tokens = min(self._burst, request.sampling.max_tokens - len(request.logprobs))
                num_blocks = blocks_for(len(request.tokens) + new_tokens - 1)
                if len(request.blocks) >= num_blocks or self._grow(request, num_blocks):
                    chunks.append(Chunk(request, request.num_computed, 1, new_tokens))
        return chunks

    def _prefill(self, budget: int, chunks: list[Chunk]) -> None:
        for request in self.running:
            if len(request.tokens) - request.num_computed > 1 and budget:
                budget -= self._add_chunk(request, budget, chunks)
        self._admit(budget, chunks)

    def _add_chunk(self, request: Request, budget: int, chunks: list[Chunk]) -> int:
        length = min(request.num_remaining, budget)
        chunks.append(Chunk(request, request.num_computed, length))
        return length

    def _admit(self, budget: int, chunks: list[Chunk]) -> None:
        """Start waiting requests while there are slots, blocks and budget: those that continue cached blocks first."""
        if self._is_full and self._finished:
            self.release_finished()
        if self._is_full or not (self.continuing or self.waiting):
            return
        being_computed = {
            _next_block(request, request.blocks[: request.num_computed // BLOCK_SIZE])
            for request in self.running
            if request.num_computed < len(request.prompt)
        } - {None}
        if self._overtaken >= PATIENCE * self._max_requests and self.waiting:
            self.continuing.appendleft(self.waiting.popleft())
            self._overtaken = 0
        budget = self._start_from(self.continuing, budget, chunks, being_computed)
        if not self.continuing:
            self._start_from(self.waiting, budget, chunks, being_computed)
        if not (self.continuing or self.waiting):
            self._is_short, self._overtaken = False, 0

    def _start_from(
        self, queue: deque[Request], budget: int, chunks: list[Chunk], being_computed: set[Edge | None]
    ) -> int:
        """Start the requests of one queue in order; returns what is left of the budget.

        A request whose next block is being computed by a running request is skipped: one step later it finds that block
        in the cache. So the members of a group compute their prompt once.
        """
        skipped: list[Request] = []
        while queue and budget and len(self.running) < self._max_requests:
            request = queue.popleft()
            blocks = self._cached_blocks(request)  # more than it holds, perhaps
            self._let_go(request)
            next_block = _next_block(request, blocks)
            is_skipped = next_block in being_computed
            if is_skipped or not self._start(request, blocks):
                skipped.append(request)
                if queue is self.continuing:
                    request.blocks = blocks
                else:
                    self.pool.release(blocks)
                if is_skipped:
                    continue
                break
            if next_block is not None:
                being_computed.add(next_block)
            self._overtaken += queue is self.continuing and bool(self.waiting)
            budget -= self._add_chunk(request, budget, chunks)
        queue.extendleft(reversed(skipped))
        return budget

    def _cached_blocks(self, request: Request) -> list[int]:
        """The cached blocks it begins with, of which it is an owner from now on."""
        # The last token must be computed, so its block is left out.
        num_keys = (len(request.tokens) - 1) // BLOCK_SIZE
        return self.cache.match(request.keys(num_keys)[:num_keys])

    def _start(self, request: Request, cached: list[int]) -> bool:
        """Give a request the blocks for all its tokens; False, and nothing taken, when there are not enough.

        While others run, one block is left for them: otherwise the next request to grow would preempt this one at once.
        """
        num_new = blocks_for(len(request.tokens)) - len(cached)
        if not self._make_room(num_new + bool(self.running)):
            self._is_full = True
            return False
        request.blocks = cached
        request.num_computed = len(cached) * BLOCK_SIZE
        request.num_cached_blocks = len(cached)
        cached += self.pool.allocate(num_new)
        self.cache.count(len(request.tokens), request.num_computed)
        self.running[request] = None
        return True

    def _grow(self, request: Request, num_blocks: int) -> bool:
        """Give a running request blocks until it has `num_blocks`; False when the request itself was preempted."""
        while len(request.blocks) < num_blocks:
            while not self._make_room(1):
                youngest = next(reversed(self.running))
                self._preempt(youngest)
                self.num_preemptions += 1
                if youngest is request:
                    return False
            request.blocks += self.pool.allocate(1)
        return True

    def _make_room(self, count: int) -> bool:
        """Whether `count` blocks are free, after evicting from the prefix cache where necessary, at last what waiting
        requests hold of it."""
        if count > self.pool.num_free and self._finished:
            self.release_finished()
        while (num_missing := count - self.pool.num_free) > 0:
            self._is_short = True
            if self.cache.evict(num_missing) < num_missing:
                if not self.continuing:
                    return False
                self._give_up_prefix()
        return True

    def _give_up_prefix(self) -> None:
        """The last request that waits with cached blocks waits without them, behind all others."""
        request = self.continuing.pop()
        self._let_go(request)
        self.waiting.append(request)
        self.num_preemptions += 1

    def _let_go(self, request: Request) -> None:
        # Not `leave`: what is given up first is evicted first.
        self.pool.release(request.blocks)
        request.blocks = []

    def _preempt(self, request: Request) -> None:
        del self.running[request]
        self._release(request)
        self.waiting.appendleft(request)

    def _release(self, request: Request) -> None:
        self.cache.leave(request.blocks, request.num_cached_blocks)
        request.blocks = []
        request.num_computed = request.num_cached_blocks = 0
        self._is_full = False


def _next_block(request: Request, computed: list[int]) -> Edge | None:
    """The block of its prompt that a request computes next, after these; None when no full block is left.

    Computed blocks are in the prefix cache, so requests with the same prefix hold the same ones. Of a prefix that is
    being computed only the first block is needed: whoever waits has found all blocks before it.
    """
    if len(computed) >= len(request.prompt) // BLOCK_SIZE:
        return None
    return computed[-1] if computed else ROOT, request.keys(len(computed) + 1)[len(computed)]
