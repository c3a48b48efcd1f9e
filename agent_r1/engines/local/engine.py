"""The in-process engine: paged memory, shared prefixes and continuous batching on any dense `transformers` decoder.

Requests wait in a queue; the scheduler gives them blocks of the key/value cache and decides what each step computes;
the runner computes it; a finished request leaves at once. `blocks`, `radix` and `scheduler` are plain Python, `paged`
turns a step into arrays, `attention` is the one function the model calls.

The engine computes on the event loop and yields to it between steps. The order of events is therefore a function of
the requests alone as long as tools answer on the event loop too, which makes whole runs repeatable.

In float32 on CPU a request's tokens and log-probs depend, bit for bit, on nothing but its prompt, its sampling
parameters and the weights: not on company, chunks, prefixes found in the cache, or preemption. This rests on the matrix
library computing a row of a product in the same way whatever the number of rows (a multiple of 16), which `cpu_linear`
sees to. The same requests in the same order get the same answers in any case.
"""

from __future__ import annotations

import asyncio
import math
import warnings
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from agent_r1.engines.local.blocks import BLOCK_SIZE
from agent_r1.engines.local.request import Request
from agent_r1.engines.local.runner import Drawing, ModelRunner
from agent_r1.engines.local.scheduler import Chunk, Scheduler
from agent_r1.engines.local.stats import EngineStats
from agent_r1.errors import INTERRUPTIONS, EngineError, described, portable
from agent_r1.types import Completion, SamplingParams

_TURNS = 16
"""Rounds of the event loop between two steps that compute on it. An answer from a server or a process needs some ten
until its episode asks for the next action; with one round a step, steps would go by with a request or two each."""

_ANSWER_TURNS = 5
"""Rounds of the event loop until all who wait for an answer have it (the task that asked, and whoever gathers tasks)
and have asked for what comes next."""

_EARLY_TOKENS = 8192
"""With the prompts of so many tokens an idle device is started, though more are coming: they keep it busy meanwhile."""


@dataclass(frozen=True)
class _PendingStep:
    """A step that was started and not looked at yet."""

    chunks: list[Chunk]
    drawing: Drawing


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
        """Copy the model and set memory aside.

        Args:
            model: A causal language model of `transformers`.
            max_requests: At most this many run at once; the others wait.
            context_length: Prompt and completion together; the model's own limit when not given.
            prefill_tokens: Tokens of prompts computed in one step; a longer prompt is computed in chunks.
            kv_memory: Tokens whose keys and values are kept, or the fraction of memory to take, in (0, 1].
            dtype: Of the copy; the model's own when not given.
            compile_layers: On CUDA, compile the decoder layers: some twenty seconds at the start, faster decoding.
            adapters: Ranks of LoRA adapters by the names of their layers: applied beside the weights, not merged.
        """
        config: Any = model.config
        self._context_length = context_length or int(config.get_text_config().max_position_embeddings)
        self._runner = _make_runner(
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
        self._scheduler = self._fresh_scheduler()
        self._counts = EngineStats()
        self._answers: dict[Request, asyncio.Future[Completion]] = {}
        self._version = 0
        self._server: asyncio.Task[None] | None = None
        # Held while a step computes: on CUDA the event loop goes on meanwhile, and weights must not change under it.
        self._computing = asyncio.Lock()
        # Not set while the engine is paused.
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._flight: _PendingStep | None = None
        # Answers are given out, and nothing is computed unless somebody asks for more.
        self._answering = False
        # Tokens of prompts that came since a step was last started.
        self._come_tokens = 0

    @property
    def policy_version(self) -> int:
        """The version given with the latest weight update."""
        return self._version

    @property
    def context_length(self) -> int:
        """Prompt and completion together."""
        return self._context_length

    @property
    def adapters(self) -> frozenset[str]:
        """Layers whose adapters are applied beside their weights."""
        return self._adapters

    @property
    def pauses_during_update(self) -> bool:
        """It computes on the learner's device."""
        return True

    @property
    def stats(self) -> EngineStats:
        """What was counted so far."""
        return replace(
            self._counts,
            prompt_tokens=self._scheduler.cache.query_tokens,
            prefix_tokens=self._scheduler.cache.hit_tokens,
            preemptions=self._scheduler.num_preemptions,
        )

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Sample one completion."""
        request = Request(prompt=tuple(prompt_ids), sampling=sampling)
        self._check(request)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Completion] = loop.create_future()
        self._answers[request] = answer
        self._scheduler.add(request)
        self._come_tokens += len(request.prompt)
        if self._server is None or self._server.done():
            self._server = loop.create_task(self._serve())
        if self._come_tokens >= min(self._prefill_tokens, _EARLY_TOKENS):
            self._start_early()
        return await answer

    async def update_weights(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """Copy the trainer's weights in place and forget every cached key and value.

        Requests under way keep what they sampled and go on under the new weights, which first read all of it again.
        """
        async with self._computing:
            await self._land_all()
            try:
                self._runner.load(weights)
                self._version = version
            finally:  # nothing that old weights computed may be read beside new ones, not even after a failure
                self._scheduler.forget()
                self._runner.forget()

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Inside, no step computes: the learner has the device to itself. Requests are accepted and wait.

        Callers have their answers and have submitted their next requests before the block is entered, so the order of
        events does not depend on how long it takes.
        """
        self._resumed.clear()
        try:
            async with self._computing:
                await self._land_all()
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            yield
        finally:
            self._resumed.set()

    async def close(self) -> None:
        """Stop serving; requests still under way fail."""
        if self._server is not None:
            self._server.cancel()
            self._server = None
        self._fail_all("the engine was closed")

    def _check(self, request: Request) -> None:
        """Refuse what can never be answered."""
        prompt, max_tokens = request.prompt, request.sampling.max_tokens
        if not prompt:
            raise EngineError("the prompt is empty; give at least one token")
        if max_tokens < 1:
            raise EngineError(f"max_tokens is {max_tokens}; ask for at least one token")
        _check_sampling(request.sampling)
        together = f"a prompt of {len(prompt)} tokens and {max_tokens} new ones do not fit"
        if len(prompt) + max_tokens > self._context_length:
            raise EngineError(f"{together} a context of {self._context_length}")
        if request.most_blocks > self._runner.num_blocks:
            raise EngineError(
                f"{together} the cache of {self._runner.num_blocks * BLOCK_SIZE} tokens; give the engine more kv_memory"
            )
        if min(prompt) < 0 or max(prompt) >= self._runner.vocabulary:
            raise EngineError(
                f"the prompt has token ids from {min(prompt)} to {max(prompt)}; the model knows 0 to "
                f"{self._runner.vocabulary - 1}"
            )

    async def _serve(self) -> None:
        """Serve until nothing is left to do."""
        try:
            while self._scheduler.has_work or self._flight is not None:
                await self._resumed.wait()
                async with self._computing:
                    await self._step()
                for _ in range(_TURNS if self._flight is None else 1):
                    await asyncio.sleep(0)
        except INTERRUPTIONS:
            raise
        except BaseException as error:  # the requests' owners must hear of it, or they would wait for ever
            self._fail_all(f"generation failed: {described(error)}")
            if isinstance(error, Exception):
                raise
            raise portable(error) from error

    def _start_early(self) -> None:
        """Start a device that has nothing to do on the prompts that are there, while others are still coming.

        A thousand requests that come at once take some time to come. What cannot be started is scheduled again, and
        its failure told, by `_step`.
        """
        may_start = (self._answering or not self._computing.locked()) and self._resumed.is_set()
        if self._runner.burst > 1 and self._flight is None and may_start:
            chunks = self._scheduler.schedule()
            self._flight = self._launch(chunks) if chunks else None

    async def _step(self) -> None:
        """Start a step, if possible before the last one was looked at, so that the device never waits for us."""
        self._drop_cancelled()
        flight = self._flight
        if flight is not None:
            ahead = self._scheduler.ahead(flight.chunks)
            self._flight = self._launch(ahead, after=flight.chunks) if ahead else None
            await self._finish_step(flight, may_start=True)
            return
        chunks = self._scheduler.schedule()
        if not chunks:
            return
        self._flight = self._launch(chunks)
        if self._flight is None:
            await self._compute_alone(chunks)
        elif self._flight.drawing.done():
            await self._land_all()

    def _launch(self, chunks: list[Chunk], after: list[Chunk] | None = None) -> _PendingStep | None:
        """Start computing; None when that failed.

        `after` are the chunks of the step that is under way; its tokens matter to those that continue it.
        """
        try:
            with torch.inference_mode():
                drawing = self._runner.draw(chunks, after if any(chunk.foreseen for chunk in chunks) else None)
        except Exception as error:  # noqa: BLE001 - a model is foreign code
            # Who is at fault is found by trying each alone; that a step failed is worth a word in any case.
            warnings.warn(
                f"a step of the engine failed ({type(error).__name__}: {error}); its requests are computed one by one",
                stacklevel=2,
            )
            return None
        self._come_tokens = 0
        self._counts.steps += 1
        self._counts.computed_tokens += sum(chunk.length for chunk in chunks)
        self._scheduler.computed([chunk for chunk in chunks if not chunk.foreseen])
        return _PendingStep(chunks, drawing)

    async def _compute_alone(self, chunks: list[Chunk]) -> None:
        """After a step that failed: who fails alone hears of it, the others go on."""
        for chunk in chunks:
            try:
                with torch.inference_mode():
                    drawing = self._runner.draw([chunk])
                self._counts.steps += 1
                self._counts.computed_tokens += chunk.length
                self._scheduler.computed([chunk])
                await self._finish_step(_PendingStep([chunk], drawing))
            except Exception as error:  # noqa: BLE001
                self._scheduler.remove(chunk.request)
                self._fail(chunk.request, f"generation failed: {type(error).__name__}: {error}", cause=error)

    async def _land_all(self) -> None:
        """Take what is still under way."""
        if self._flight is not None:
            flight, self._flight = self._flight, None
            await self._finish_step(flight)

    async def _finish_step(self, flight: _PendingStep, *, may_start: bool = False) -> None:
        """Wait for a step and give the requests what was drawn for them; those that left meanwhile want nothing.

        Answers come first: the blocks of those that are finished are seen to when their callers have gone on. With
        `may_start` what these ask for then starts an idle device, which computes while we see to the blocks.
        """
        while not flight.drawing.done():
            await asyncio.sleep(0)
        drawn = flight.drawing.result()
        sampling = [chunk for chunk in flight.chunks if chunk.samples]
        scheduler, num_running = self._scheduler, len(self._scheduler.running)
        for chunk, tokens, logprobs in zip(sampling, drawn.tokens, drawn.logprobs, strict=True):
            if chunk.request in scheduler.running and self._accept_tokens(chunk, tokens, logprobs):
                scheduler.finish(chunk.request)
        self._answering = may_start
        try:
            for _ in range(_ANSWER_TURNS if len(scheduler.running) < num_running else 0):
                await asyncio.sleep(0)
        finally:  # a loop that ends with its answers stops serving here
            self._answering = False
            scheduler.settle()

    def _accept_tokens(self, chunk: Chunk, tokens: list[int], logprobs: list[float]) -> bool:
        """Give a request what was drawn for it, up to its stop; True when it is finished, and answered."""
        request = chunk.request
        num_taken = request.take(tokens, logprobs, self._version)
        if not math.isfinite(sum(request.logprobs[-num_taken:])):
            self._scheduler.remove(request)
            self._fail(request, "the model gave a log-probability of nan or inf; its weights may be broken")
            return False
        # All but the last of them were inputs of the same step.
        request.num_computed = chunk.end + num_taken - 1
        self._counts.computed_tokens += num_taken - 1
        self._counts.generated_tokens += num_taken
        if not request.finished:
            self._scheduler.file(request)
            return False
        answer = self._answers.pop(request)
        if not answer.done():
            answer.set_result(
                Completion(
                    token_ids=tuple(request.tokens[len(request.prompt) :]),
                    logprobs=tuple(request.logprobs),
                    finish_reason="stop" if request.stopped else "length",
                    policy_versions=tuple(request.versions),
                )
            )
        return True

    def _drop_cancelled(self) -> None:
        """Requests whose caller went away leave without an answer."""
        for request in [request for request, answer in self._answers.items() if answer.done()]:
            self._scheduler.remove(request)
            del self._answers[request]

    def _fail(self, request: Request, message: str, cause: BaseException | None = None) -> None:
        answer = self._answers.pop(request)
        if not answer.done():
            error = EngineError(message)
            error.__cause__ = cause
            answer.set_exception(error)

    def _fail_all(self, message: str) -> None:
        """Everybody's request fails. The scheduler is made anew, for it may have been stopped half-way."""
        for request in list(self._answers):
            self._fail(request, message)
        self._flight = None
        self._scheduler = self._fresh_scheduler()

    def _fresh_scheduler(self) -> Scheduler:
        return Scheduler(
            num_blocks=self._runner.num_blocks,
            max_requests=self._max_requests,
            prefill_tokens=self._prefill_tokens,
            burst=self._runner.burst,
        )


def _check_sampling(sampling: SamplingParams) -> None:
    """Refuse what means nothing, before it means different things on different devices."""
    temperature, top_k, top_p = sampling.temperature, sampling.top_k, sampling.top_p
    if not (temperature == 0 or 1e-6 <= temperature < math.inf):
        raise EngineError(f"temperature is {temperature}; give 0 (greedy) or a positive number")
    if top_k < 0:
        raise EngineError(f"top_k is {top_k}; give 0 to keep all tokens")
    if not 0 < top_p <= 1:
        raise EngineError(f"top_p is {top_p}; give a number in (0, 1]")


def _make_runner(model: nn.Module, *, compile_layers: bool, **settings: Any) -> ModelRunner:
    if next(model.parameters()).device.type != "cuda":
        return ModelRunner(model, **settings)
    from agent_r1.engines.local.cuda.runner import CudaRunner  # needs Triton, which machines without CUDA lack

    return CudaRunner(model, compile_layers=compile_layers, **settings)
