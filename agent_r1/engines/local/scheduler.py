"""Who computes what in the next step, and who holds which blocks.

Every step all decoding requests compute their newest token; prompts share what is left of a token budget, in chunks.
Where a step may be a burst (on CUDA) decoding requests draw several tokens in it, and prompts get steps of their own.
When blocks run out the prefix cache gives up its oldest ones; when that is not enough the youngest running request is
sent back to the queue. It keeps what it sampled and is computed again later, so nobody sees an error.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from agent_r1.engines.local.blocks import BLOCK_SIZE, BlockPool, blocks_for
from agent_r1.engines.local.prefix_cache import PrefixCache
from agent_r1.engines.local.request import Request


class Chunk(NamedTuple):
    """Tokens `start` to `start + length` of a request are computed in this step.

    A tuple because thousands are made in each step, and other records take several times as long to make.
    """

    request: Request
    start: int
    length: int
    draws: int = 1
    """Tokens that may be drawn after it, one after the other: the request holds the blocks for them."""
    foreseen: bool = False
    """Its token is not known to us yet: it is the last one that the step before it draws."""

    @property
    def end(self) -> int:
        """Tokens of the request that are computed after this step."""
        return self.start + self.length

    @property
    def samples(self) -> bool:
        """Whether a token can be sampled after it."""
        return self.foreseen or self.end == len(self.request.tokens)

    @property
    def num_sampled(self) -> int:
        """Tokens of the request that are sampled before it draws."""
        return self.end - len(self.request.prompt)


class Scheduler:
    """Waiting and running requests over one pool of blocks.

    >>> from agent_r1.types import SamplingParams
    >>> scheduler = Scheduler(num_blocks=8, max_requests=4, prefill_tokens=32)
    >>> request = Request(prompt=tuple(range(40)), sampling=SamplingParams(max_tokens=2))
    >>> scheduler.add(request)
    >>> chunks = scheduler.schedule()
    >>> [(chunk.start, chunk.end) for chunk in chunks]  # the budget cuts the prompt
    [(0, 32)]
    >>> scheduler.computed(chunks)
    >>> [(chunk.start, chunk.end, chunk.samples) for chunk in scheduler.schedule()]
    [(32, 40, True)]
    """

    def __init__(self, *, num_blocks: int, max_requests: int, prefill_tokens: int, burst: int = 1) -> None:
        self.pool = BlockPool(num_blocks)
        self.cache = PrefixCache(self.pool)
        self.waiting: deque[Request] = deque()
        # In the order of admission; a dict, for requests leave from anywhere.
        self.running: dict[Request, None] = {}
        # Answered, but with blocks of theirs still held.
        self._left: list[Request] = []
        self.num_preemptions = 0
        # The head of the queue found too few blocks. Only a request that leaves can change that.
        self._is_full = False
        self._max_requests = max_requests
        self._prefill_tokens = prefill_tokens
        self._burst = burst

    @property
    def has_work(self) -> bool:
        """Whether anyone waits or runs."""
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Queue a request. It must fit the pool alone (`request.most_blocks`)."""
        self.waiting.append(request)

    def remove(self, request: Request) -> None:
        """A request leaves unfinished; its blocks are free."""
        if request in self.running:
            del self.running[request]
            self._release(request)
        else:
            self.waiting.remove(request)
            self._is_full = False  # the next in the queue may be smaller

    def finish(self, request: Request) -> None:
        """A request leaves with its answer. Its blocks are seen to by `settle`."""
        del self.running[request]
        self._left.append(request)

    def settle(self) -> None:
        """See to the blocks of those that left with their answers: full ones stay for the turn that continues them."""
        left, self._left = self._left, []
        for request in left:
            self.file(request)
            self._release(request)

    def file(self, request: Request) -> None:
        """Enter the blocks that a running request has filled since the last time into the prefix cache.

        Done while a device computes what comes next, so that little is left to do when everybody waits for answers.
        """
        num_full = request.num_computed // BLOCK_SIZE
        if num_full > request.num_filed:
            filled = request.tokens[: num_full * BLOCK_SIZE]
            request.blocks = self.cache.insert(filled, request.blocks, num_known=request.num_filed)
            request.num_filed = num_full

    def forget(self) -> None:
        """Nothing that was computed counts any more: everyone goes back to the queue, in the order of admission.

        Those that left come first: their blocks cannot be entered into a prefix cache that knows none of the earlier.
        """
        self.settle()
        for request in reversed(list(self.running)):
            self._preempt(request)
        self.cache.clear()

    def computed(self, chunks: list[Chunk]) -> None:
        """These chunks are in the cache, or will be before anything that is started from now on reads it."""
        for chunk in chunks:
            request = chunk.request
            request.num_computed = chunk.end
            self.file(request)

    def schedule(self) -> list[Chunk]:
        """What to compute now; empty only when nobody is there.

        Decoding requests and prompts together; with bursts, prompts alone as long as there are any.
        """
        if self._burst == 1:
            chunks = self._decode()
            self._prefill(max(self._prefill_tokens - len(chunks), BLOCK_SIZE), chunks)
            return chunks
        prompts: list[Chunk] = []
        self._prefill(self._prefill_tokens, prompts)
        return prompts or self._decode()

    def ahead(self, flying: list[Chunk]) -> list[Chunk]:
        """What can be started while these chunks are still computed; empty when they must be looked at first.

        Prompts can, for they need nothing that is drawn. So can a burst of decoding, as if nobody stopped. A request
        that did stop computes one burst in vain. Blocks it gave back meanwhile may have a new owner, whose writes come
        after: steps are computed in the order they are started in.
        """
        if self._burst == 1:
            return []
        prompts: list[Chunk] = []
        self._prefill(self._prefill_tokens, prompts)
        return prompts or self._decode_ahead({chunk.request: chunk for chunk in flying if chunk.samples})

    def _decode_ahead(self, drawing: dict[Request, Chunk]) -> list[Chunk]:
        """A burst of all that run: those in `drawing` go on from what is being drawn for them, the others from a token
        that is known; none while anyone has more to compute, or when there are too few blocks."""
        chunks, missing = list[Chunk](), 0
        for request in self.running:
            before = drawing.get(request)
            if before is not None:
                start, num_sampled = before.end + before.draws - 1, before.num_sampled + before.draws
            elif request.num_remaining == 1:
                start, num_sampled = request.num_computed, request.num_sampled
            else:
                return []
            draws = min(self._burst, request.sampling.max_tokens - num_sampled)
            if draws > 0:
                missing += max(0, blocks_for(start + draws) - len(request.blocks))
                chunks.append(Chunk(request, start, 1, draws, foreseen=before is not None))
        if not self._make_room(missing):
            return []
        for chunk in chunks:
            while len(chunk.request.blocks) < blocks_for(chunk.start + chunk.draws):
                self._append_block(chunk.request)
        return chunks

    def _decode(self) -> list[Chunk]:
        chunks: list[Chunk] = []
        for request in list(self.running):
            # Whoever is preempted for a request is younger than it, and so comes after it in the list.
            if request.num_remaining == 1 and request in self.running:
                draws = min(self._burst, request.sampling.max_tokens - len(request.logprobs))
                wanted = blocks_for(len(request.tokens) + draws - 1)
                if len(request.blocks) >= wanted or self._hold(request, wanted):
                    chunks.append(Chunk(request, request.num_computed, 1, draws))
        return chunks

    def _prefill(self, budget: int, chunks: list[Chunk]) -> None:
        for request in self.running:
            if request.num_remaining > 1 and budget:
                budget -= self._take_chunk(request, budget, chunks)
        self._admit(budget, chunks)

    def _take_chunk(self, request: Request, budget: int, chunks: list[Chunk]) -> int:
        length = min(request.num_remaining, budget)
        chunks.append(Chunk(request, request.num_computed, length))
        return length

    def _admit(self, budget: int, chunks: list[Chunk]) -> None:
        """Start waiting requests in their order while there are places, blocks and budget.

        One whose next block is being computed by a running request is passed over: a step later it finds that block in
        the cache. So the members of a group compute their prompt once.
        """
        if self._is_full and self._left:
            self.settle()
        if not self.waiting or self._is_full:
            return
        being_computed = {
            prefix
            for request in self.running
            if request.num_computed < len(request.prompt)
            for prefix in request.prompt_hashes[request.num_computed // BLOCK_SIZE :]
        }
        passed_over: list[Request] = []
        while self.waiting and budget and len(self.running) < self._max_requests:
            request = self.waiting.popleft()
            blocks = self.cache.match(request.tokens)
            next_blocks = request.prompt_hashes[len(blocks) :]
            if next_blocks and next_blocks[0] in being_computed:
                self.pool.release(blocks)
                passed_over.append(request)
                continue
            if not self._start(request, blocks):
                passed_over.append(request)
                break
            being_computed.update(next_blocks)
            budget -= self._take_chunk(request, budget, chunks)
        self.waiting.extendleft(reversed(passed_over))

    def _start(self, request: Request, known: list[int]) -> bool:
        """Give a request the blocks of all its tokens; False, and nothing taken, when there are not enough.

        While others run one block is left for them, or the next to grow would send this one back at once.
        """
        num_new = blocks_for(len(request.tokens)) - len(known)
        if not self._make_room(num_new + bool(self.running)):
            self.pool.release(known)
            self._is_full = True
            return False
        request.blocks = known
        request.num_computed = len(known) * BLOCK_SIZE
        request.num_filed = len(known)
        for _ in range(num_new):
            self._append_block(request)
        self.cache.count(len(request.tokens), request.num_computed)
        self.running[request] = None
        return True

    def _hold(self, request: Request, wanted: int) -> bool:
        """Give a running request as many blocks as wanted; False when the request itself had to give way."""
        while len(request.blocks) < wanted:
            while not self._make_room(1):
                youngest = next(reversed(self.running))
                self._preempt(youngest)
                if youngest is request:
                    return False
            self._append_block(request)
        return True

    def _make_room(self, count: int) -> bool:
        """Whether so many blocks are free, after the prefix cache gave up what it must."""
        if count > self.pool.num_free and self._left:
            self.settle()
        missing = count - self.pool.num_free
        return missing <= 0 or self.cache.evict(missing) == missing

    def _append_block(self, request: Request) -> None:
        block = self.pool.allocate()
        assert block is not None, "blocks are counted before they are taken"
        request.blocks.append(block)

    def _preempt(self, request: Request) -> None:
        del self.running[request]
        self._release(request)
        self.waiting.appendleft(request)
        self.num_preemptions += 1

    def _release(self, request: Request) -> None:
        self.pool.release(request.blocks)
        request.blocks = []
        request.num_computed = request.num_filed = 0
        self._is_full = False
