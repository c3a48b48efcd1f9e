"""The in-process engine: paged KV cache, prefix sharing and continuous batching on any dense `transformers` decoder.

Requests wait in a queue; the scheduler gives them blocks of the KV cache and decides what each step computes; the
runner computes it; a finished request leaves at once. `blocks`, `prefix_cache` and `scheduler` are plain Python,
`batch` turns a step into arrays, `attention` is the one function the model calls.

The engine computes on the event loop and yields to it between steps. As long as tools answer on the event loop too, the
order of events is a function of the requests alone, which makes whole runs repeatable.

In float32 on CPU the engine is batch-invariant: a request's tokens and log-probs depend, bit for bit, only on its
prompt, its sampling parameters and the weights, not on the other requests, on chunks, on prefixes found in the cache or
on preemption. This requires matrix products whose rows do not depend on the number of rows (a multiple of 16), which
`cpu.linear` provides. The same requests in the same order get the same answers in any case.
"""

from __future__ import annotations

import asyncio
import math
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from agent_r1.engines.base import StreamedTokens
from agent_r1.engines.local.futures import RequestFutures
from agent_r1.engines.local.request import Chunk, Request
from agent_r1.engines.local.runner import PendingStep, make_runner
from agent_r1.engines.local.scheduler import Scheduler
from agent_r1.engines.local.stats import EngineStats
from agent_r1.errors import INTERRUPTIONS, described, portable
from agent_r1.types import Completion, SamplingParams

_LOOP_ROUNDS = 16
"""Rounds of the event loop between two steps that compute on it. An answer from a server or a process needs about ten
rounds until its episode asks for the next action; with one round per step, steps would run with one or two requests."""

_RESOLVE_ROUNDS = 5
"""Rounds of the event loop until every caller whose future was resolved (the task that asked, and a task that gathers
tasks) has run and submitted its next request."""

_EARLY_TOKENS = 8192
"""Prompt tokens at which an idle device is started although more prompts are arriving: they keep it busy meanwhile."""


class LocalEngine:
    """Samples from its own copy of a model.

    engine = LocalEngine(model, max_requests=128)
    completion = await engine.generate(prompt_ids, SamplingParams(max_tokens=32, seed=1))
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        max_requests: int = 256,
        context_length: int | None = None,
        prefill_tokens: int = 16384,
        kv_memory: float | None = None,
        dtype: torch.dtype | None = None,
        compile_layers: bool = True,
        adapters: Mapping[str, int] | None = None,
    ) -> None:
        """Copy the model and allocate the KV cache.

        Args:
            model: A causal language model of `transformers`.
            max_requests: Maximum number of running requests; the others wait.
            context_length: Maximum length of prompt and completion together; default: the model's limit.
            prefill_tokens: Prompt tokens computed per step; a longer prompt is computed in chunks.
            kv_memory: Size of the KV cache in tokens, or as a fraction of memory in (0, 1].
            dtype: Type of the copy's weights; default: the model's.
            compile_layers: On CUDA, compile the decoder layers: about twenty seconds at the start, faster decoding.
            adapters: Ranks of LoRA adapters by layer name: applied beside the weights, not merged.
        """
        config: Any = model.config
        self._context_length = context_length or int(config.get_text_config().max_position_embeddings)
        self._runner = make_runner(
            model,
            max_requests=max_requests,
            context_length=self._context_length,
            kv_memory=kv_memory,
            dtype=dtype,
            compile_layers=compile_layers,
            adapters=adapters,
        )
        self._adapters = frozenset(adapters or ())
        self._max_requests, self._prefill_tokens = max_requests, prefill_tokens
        self._scheduler = self._make_scheduler()
        self._counts = EngineStats()
        self._last_read = EngineStats()
        self._futures = RequestFutures()
        self._version = 0
        self._serve_task: asyncio.Task[None] | None = None
        # Held while a step computes: on CUDA the event loop runs meanwhile, and weights must not change under it.
        self._computing = asyncio.Lock()
        # Cleared while the engine is paused.
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._pending: PendingStep | None = None
        # Futures were just resolved, and nothing is computed unless a new request arrives.
        self._resolving = False
        # Prompt tokens that arrived since a step was last started.
        self._new_prompt_tokens = 0

    @property
    def policy_version(self) -> int:
        """The version given with the latest weight update."""
        return self._version

    @property
    def context_length(self) -> int:
        """Maximum length of prompt and completion together."""
        return self._context_length

    @property
    def adapters(self) -> frozenset[str]:
        """Layers whose adapters are applied beside their weights."""
        return self._adapters

    @property
    def pauses_during_update(self) -> bool:
        """True: it computes on the learner's device."""
        return True

    @property
    def stats(self) -> EngineStats:
        """The counts so far."""
        return replace(
            self._counts,
            prompt_tokens=self._scheduler.cache.query_tokens,
            prefix_tokens=self._scheduler.cache.hit_tokens,
            preemptions=self._scheduler.num_preemptions,
            encoded_images=self._runner.num_encoded_images,
        )

    def metrics(self) -> dict[str, float]:
        """Counts since the last call: of the prefix cache, of images, of captured graphs on a GPU."""
        before, self._last_read = self._last_read, self.stats
        return {**self._runner.read_metrics(), **self._last_read.since(before)}

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Sample one completion."""
        return await self._submit(Request(prompt=tuple(prompt_ids), sampling=sampling))

    def stream(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> AsyncGenerator[StreamedTokens, None]:
        """Sample one completion and yield its tokens after each step that samples some. A stream that is closed frees
        its KV blocks at once: steps in flight are ignored, as for a request that stopped."""
        request = Request(prompt=tuple(prompt_ids), sampling=sampling)
        return self._futures.stream(request, submit=self._submit, drop=lambda left: self._scheduler.remove(left))

    def _submit(self, request: Request) -> asyncio.Future[Completion]:
        """Queue a request and make sure that it is served."""
        self._runner.check(request, self._context_length)
        future = self._futures.add(request)
        self._scheduler.add(request)
        self._new_prompt_tokens += len(request.prompt)
        if self._serve_task is None or self._serve_task.done():
            self._serve_task = asyncio.get_running_loop().create_task(self._serve())
        if self._new_prompt_tokens >= min(self._prefill_tokens, _EARLY_TOKENS):
            self._start_early()
        return future

    async def update_weights(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """Copy the trainer's weights in place and drop all cached keys and values.

        Running requests keep what they sampled; the new weights recompute it and continue from there.
        """
        async with self._computing:
            await self._finish_pending()
            try:
                self._runner.load_weights(weights)
                self._version = version
            finally:  # keys and values of old weights must never be read with new ones, not even after a failure
                self._scheduler.reset()
                self._runner.clear_cache()

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Inside, no step computes: the learner has the device to itself. Requests are accepted and wait.

        Callers have their answers and have submitted their next requests before the block is entered, so the order of
        events does not depend on how long it takes.
        """
        self._resumed.clear()
        try:
            async with self._computing:
                await self._finish_pending()
            for _ in range(_LOOP_ROUNDS):
                await asyncio.sleep(0)
            yield
        finally:
            self._resumed.set()

    async def close(self) -> None:
        """Stop serving, and wait for what the device still computes; unfinished requests fail."""
        if self._serve_task is not None:
            self._serve_task.cancel()
            self._serve_task = None
        self._fail_all("the engine was closed")
        self._runner.finish()

    async def _serve(self) -> None:
        """Run steps until there are no requests."""
        try:
            while self._scheduler.has_work or self._pending is not None:
                await self._resumed.wait()
                async with self._computing:
                    await self._step()
                for _ in range(_LOOP_ROUNDS if self._pending is None else 1):
                    await asyncio.sleep(0)
        except INTERRUPTIONS:
            raise
        except BaseException as error:  # callers must get it, or they would wait forever
            self._fail_all(f"generation failed: {described(error)}")
            if isinstance(error, Exception):
                raise
            raise portable(error) from error

    def _start_early(self) -> None:
        """Start an idle device on the prompts that have arrived while others are still arriving.

        A thousand requests submitted at once take some time to arrive. If the launch fails, `_step` schedules the
        prompts again and reports the failure.
        """
        may_start = (self._resolving or not self._computing.locked()) and self._resumed.is_set()
        if self._runner.burst > 1 and self._pending is None and may_start:
            chunks = self._scheduler.schedule()
            self._pending = self._launch(chunks) if chunks else None

    async def _step(self) -> None:
        """Start a step, if possible before the previous one is read, so that the device never waits for the host."""
        for request in self._futures.pop_cancelled():
            self._scheduler.remove(request)
        pending = self._pending
        if pending is not None:
            ahead = self._scheduler.schedule_ahead(pending.chunks)
            self._pending = self._launch(ahead, after=pending.chunks) if ahead else None
            await self._finish_step(pending, may_start=True)
            return
        chunks = self._scheduler.schedule()
        if not chunks:
            return
        self._pending = self._launch(chunks)
        if self._pending is None:
            await self._compute_one_by_one(chunks)
        elif self._pending.sample.done():
            await self._finish_pending()

    def _launch(self, chunks: list[Chunk], after: list[Chunk] | None = None) -> PendingStep | None:
        """Start computing; None when that failed.

        `after` are the chunks of the pending step, whose tokens some of these chunks may continue.
        """
        try:
            with torch.inference_mode():
                sample = self._runner.sample(chunks, after if any(chunk.pending_token for chunk in chunks) else None)
        except Exception as error:  # noqa: BLE001 - a model is foreign code
            # Computing requests one by one shows which of them fails; the failed step is worth a warning in any case.
            warnings.warn(
                f"a step of the engine failed ({type(error).__name__}: {error}); its requests are computed one by one",
                stacklevel=2,
            )
            return None
        self._new_prompt_tokens = 0
        self._counts.steps += 1
        self._counts.computed_tokens += sum(chunk.length for chunk in chunks)
        self._scheduler.mark_computed([chunk for chunk in chunks if not chunk.pending_token])
        return PendingStep(chunks, sample)

    async def _compute_one_by_one(self, chunks: list[Chunk]) -> None:
        """After a failed step: requests that fail on their own get the error, the others continue."""
        for chunk in chunks:
            try:
                with torch.inference_mode():
                    sample = self._runner.sample([chunk])
                self._counts.steps += 1
                self._counts.computed_tokens += chunk.length
                self._scheduler.mark_computed([chunk])
                await self._finish_step(PendingStep([chunk], sample))
            except Exception as error:  # noqa: BLE001
                if chunk.request not in self._futures:
                    continue  # its stream was closed meanwhile
                self._scheduler.remove(chunk.request)
                self._futures.fail(chunk.request, f"generation failed: {type(error).__name__}: {error}", cause=error)

    async def _finish_pending(self) -> None:
        """Read the pending step, if there is one."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            await self._finish_step(pending)

    async def _finish_step(self, step: PendingStep, *, may_start: bool = False) -> None:
        """Wait for a step and give its tokens to the requests; requests that left meanwhile get nothing.

        Resolve futures before freeing KV blocks, so callers can submit their next request while we clean up. With
        `may_start` these requests start an idle device, which computes meanwhile.
        """
        while not step.sample.done():
            await asyncio.sleep(0)
        sampled = step.sample.result()
        sampling = [chunk for chunk in step.chunks if chunk.samples]
        scheduler, num_running = self._scheduler, len(self._scheduler.running)
        for chunk, tokens, logprobs in zip(sampling, sampled.tokens, sampled.logprobs, strict=True):
            if chunk.request in scheduler.running and self._accept_tokens(chunk, tokens, logprobs):
                scheduler.finish(chunk.request)
        self._futures.wake_streams()
        self._resolving = may_start
        try:
            for _ in range(_RESOLVE_ROUNDS if len(scheduler.running) < num_running else 0):
                await asyncio.sleep(0)
        finally:  # an event loop that ends with the last answer cancels serving here
            self._resolving = False
            scheduler.release_finished()

    def _accept_tokens(self, chunk: Chunk, tokens: list[int], logprobs: list[float]) -> bool:
        """Give a request its sampled tokens, up to its stop; True when it is finished and its future resolved."""
        request = chunk.request
        num_accepted = request.append(tokens, logprobs, self._version)
        if not math.isfinite(sum(logprobs[:num_accepted])):
            self._scheduler.remove(request)
            self._futures.fail(request, "the model gave a log-probability of nan or inf; its weights may be broken")
            return False
        # All but the last of them were inputs of the same step.
        request.num_computed = chunk.end + num_accepted - 1
        self._counts.computed_tokens += num_accepted - 1
        self._counts.generated_tokens += num_accepted
        if not request.finished:
            self._scheduler.cache_full_blocks(request)
            return False
        self._futures.resolve(request)
        return True

    def _fail_all(self, message: str) -> None:
        self._futures.fail_all(message)
        self._pending, self._scheduler = None, self._make_scheduler()  # the old one may have been stopped half-way
        self._last_read = self.stats  # some of its counts begin at 0

    def _make_scheduler(self) -> Scheduler:
        return Scheduler(
            num_blocks=self._runner.num_blocks,
            max_requests=self._max_requests,
            prefill_tokens=self._prefill_tokens,
            burst=self._runner.burst,
        )
