"""The in-process engine: continuous batching on any `transformers` causal language model.

Requests wait in a queue, get a slot of the key/value cache, are prefilled together and then decode together, one token
a step; a finished request leaves at once and a waiting one takes its slot. A request whose prompt continues what a free
slot still holds (the next turn of the same episode) only computes what is new.

The engine computes on the event loop and yields to it between steps. The order of events is therefore a function of
the requests alone as long as tools answer on the event loop too, which makes whole runs repeatable.

Left to a later engine: paged memory, sharing prefixes between slots, CUDA graphs.
"""

from __future__ import annotations

import asyncio
import copy
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from agent_r1.engines.local.sampling import sample
from agent_r1.engines.local.slots import SlotCache
from agent_r1.errors import EngineError
from agent_r1.types import Completion, SamplingParams, TokenIds

ROW_MULTIPLE = 16
"""Batches are padded to this many rows: below it CPU matrix libraries switch kernels, and a row's result would depend
on how many others are in its batch."""


def _padded(count: int) -> int:
    return -(-count // ROW_MULTIPLE) * ROW_MULTIPLE


@dataclass(slots=True, eq=False)
class _Request:
    prompt: TokenIds
    sampling: SamplingParams
    answer: asyncio.Future[Completion]
    version: int
    num_cached: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def num_computed(self) -> int:
        """Tokens whose keys and values are in the cache while the newest sampled token is not."""
        return len(self.prompt) + len(self.token_ids) - 1


class LocalEngine:
    """Samples from its own copy of a model.

    engine = LocalEngine(model, max_slots=128)
    completion = await engine.generate(prompt_ids, SamplingParams(max_tokens=32, seed=1))
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        max_slots: int = 128,
        context_length: int | None = None,
        prefill_tokens: int = 8192,
    ) -> None:
        config: Any = model.config
        self._model = copy.deepcopy(model).eval().requires_grad_(False)
        self._text_config: Any = config.get_text_config()
        self._context_length = context_length or int(self._text_config.max_position_embeddings)
        self._num_slots = _padded(max_slots)
        self._prefill_tokens = prefill_tokens
        parameter = next(model.parameters())
        self._device, self._dtype = parameter.device, parameter.dtype
        self._version = 0
        self._waiting: deque[_Request] = deque()
        self._running: dict[int, _Request] = {}
        self._server: asyncio.Task[None] | None = None
        self._forget()

    @property
    def policy_version(self) -> int:
        """The version given with the latest weight update."""
        return self._version

    @property
    def context_length(self) -> int:
        """Prompt and completion together."""
        return self._context_length

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Sample one completion."""
        prompt = tuple(prompt_ids)
        if not prompt:
            raise EngineError("the prompt is empty; give at least one token")
        if sampling.max_tokens < 1:
            raise EngineError(f"max_tokens is {sampling.max_tokens}; ask for at least one token")
        if len(prompt) + sampling.max_tokens > self._context_length:
            raise EngineError(
                f"a prompt of {len(prompt)} tokens and {sampling.max_tokens} new ones do not fit a context of "
                f"{self._context_length}"
            )
        loop = asyncio.get_running_loop()
        request = _Request(prompt=prompt, sampling=sampling, answer=loop.create_future(), version=self._version)
        self._waiting.append(request)
        if self._server is None or self._server.done():
            self._server = loop.create_task(self._serve())
        return await request.answer

    async def update_weights(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """Copy the trainer's weights in place and forget every cached key and value."""
        if self._running or self._waiting:
            raise EngineError(f"weights cannot change under {len(self._running)} running requests; wait for them first")
        own = self._model.state_dict(keep_vars=True)
        with torch.no_grad():
            for name, tensor in weights:
                if name not in own:
                    raise EngineError(f"the engine's model has no parameter '{name}'")
                own[name].copy_(tensor)
        self._version = version
        self._resumable.clear()

    async def close(self) -> None:
        """Stop serving; requests still under way fail."""
        if self._server is not None:
            self._server.cancel()
        self._fail_all(EngineError("the engine was closed"))

    async def _serve(self) -> None:
        """Serve until nothing is left to do."""
        try:
            while self._waiting or self._running:
                self._drop_cancelled()
                with torch.inference_mode():
                    self._admit()
                    self._decode()
                await asyncio.sleep(0)
        except Exception as error:  # the requests' owners must hear of it, or they would wait for ever
            self._fail_all(EngineError(f"generation failed: {type(error).__name__}: {error}"))
            raise

    def _fail_all(self, error: EngineError) -> None:
        for request in [*self._running.values(), *self._waiting]:
            if not request.answer.done():
                request.answer.set_exception(error)
        self._running.clear()
        self._waiting.clear()
        self._forget()

    def _forget(self) -> None:
        """An empty cache."""
        self._cache = SlotCache(int(self._text_config.num_hidden_layers), self._num_slots)
        # What each free slot still holds, oldest first.
        self._resumable: OrderedDict[TokenIds, int] = OrderedDict()

    def _drop_cancelled(self) -> None:
        """Requests whose caller went away leave without an answer."""
        self._waiting = deque(request for request in self._waiting if not request.answer.done())
        for slot, request in list(self._running.items()):
            if request.answer.done():
                del self._running[slot]

    # --- admission -------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Give waiting requests slots and prefill them, those with similar amounts of work together."""
        admitted: list[tuple[int, _Request]] = []
        while self._waiting and len(self._running) < self._num_slots:
            request = self._waiting.popleft()
            slot, request.num_cached = self._take_slot(request.prompt)
            self._running[slot] = request
            admitted.append((slot, request))
        admitted.sort(key=lambda pair: len(pair[1].prompt) - pair[1].num_cached)
        batch: list[tuple[int, _Request]] = []
        for slot, request in admitted:
            if batch and (len(batch) + 1) * (len(request.prompt) - request.num_cached) > self._prefill_tokens:
                self._prefill(batch)
                batch = []
            batch.append((slot, request))
        if batch:
            self._prefill(batch)

    def _take_slot(self, prompt: TokenIds) -> tuple[int, int]:
        """A free slot and how many leading tokens of the prompt it already holds."""
        for length in sorted({len(held) for held in self._resumable if len(held) < len(prompt)}, reverse=True):
            slot = self._resumable.pop(prompt[:length], None)
            if slot is not None:
                return slot, length
        held_slots = set(self._resumable.values())
        unused = next((s for s in range(self._num_slots) if s not in self._running and s not in held_slots), None)
        if unused is not None:
            return unused, 0
        return self._resumable.popitem(last=False)[1], 0

    def _prefill(self, batch: Sequence[tuple[int, _Request]]) -> None:
        """Compute the new part of each prompt, padded on the left, and draw each request's first token."""
        width = max(ROW_MULTIPLE, max(len(request.prompt) - request.num_cached for _, request in batch))
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        positions = torch.full((len(batch), width), -1, dtype=torch.long)
        for row, (_, request) in enumerate(batch):
            new = request.prompt[request.num_cached :]
            ids[row, width - len(new) :] = torch.tensor(new)
            positions[row, width - len(new) :] = torch.arange(request.num_cached, len(request.prompt))
        rows = torch.tensor([slot for slot, _ in batch])
        logits = self._forward(ids, positions, rows)
        self._take_tokens(batch, logits)

    # --- decoding --------------------------------------------------------------------------------------------------

    def _decode(self) -> None:
        """One more token for every running request."""
        if not self._running:
            return
        batch = list(self._running.items())
        slots = torch.tensor([slot for slot, _ in batch])
        num_rows = _padded(max(self._running) + 1)
        rows: Tensor | slice = slice(0, num_rows)
        places = slots
        if num_rows > 2 * _padded(len(batch)):
            # Few are left: copying their rows out of the cache is cheaper than computing every row below the highest.
            num_rows = _padded(len(batch))
            rows = torch.zeros(num_rows, dtype=torch.long)
            rows[: len(batch)] = slots
            places = torch.arange(len(batch))
        ids = torch.zeros(num_rows, dtype=torch.long)
        positions = torch.full((num_rows,), -1, dtype=torch.long)
        ids[places] = torch.tensor([request.token_ids[-1] for _, request in batch])
        positions[places] = torch.tensor([request.num_computed for _, request in batch])
        logits = self._forward(ids[:, None], positions[:, None], rows)
        self._take_tokens(batch, logits[places.to(logits.device)])

    def _forward(self, ids: Tensor, positions: Tensor, rows: Tensor | slice) -> Tensor:
        """Logits [rows, vocabulary] of each row's last token; positions of -1 are padding."""
        longest = int(positions.max()) + 1
        visible = _padded(longest)
        self._cache.reserve(visible)
        ids, positions = ids.to(self._device), positions.to(self._device)
        rows = rows.to(self._device) if isinstance(rows, Tensor) else rows
        row_index = torch.arange(rows.stop, device=self._device) if isinstance(rows, slice) else rows
        self._cache.address(rows, row_index[:, None].expand_as(positions), positions, visible)
        output: Any = self._model(
            input_ids=ids,
            position_ids=positions.clamp(min=0),
            attention_mask=self._mask(positions, visible),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    def _mask(self, positions: Tensor, visible: int) -> Tensor | dict[str, Tensor]:
        """Who sees whom, added to the scores [rows, 1, new tokens, visible]: a token sees its slot up to itself."""
        keys = torch.arange(visible, device=positions.device)
        queries = positions.clamp(min=0)[:, None, :, None]
        seen = keys <= queries
        layer_types = set(getattr(self._text_config, "layer_types", None) or ())
        window = getattr(self._text_config, "sliding_window", None)
        switched_off = not getattr(self._text_config, "use_sliding_window", True)
        if window is None or switched_off or (layer_types and "sliding_attention" not in layer_types):
            return self._additive(seen)
        near = self._additive(seen & (keys > queries - int(window)))
        if layer_types <= {"sliding_attention"}:  # a window without layer types is every layer's
            return near
        return {"full_attention": self._additive(seen), "sliding_attention": near}

    def _additive(self, seen: Tensor) -> Tensor:
        return torch.zeros(seen.shape, dtype=self._dtype, device=seen.device).masked_fill_(~seen, float("-inf"))

    def _take_tokens(self, batch: Sequence[tuple[int, _Request]], logits: Tensor) -> None:
        """Draw the next token of each request; those that are finished leave."""
        tokens, logprobs = sample(
            logits, [request.sampling for _, request in batch], [len(request.token_ids) for _, request in batch]
        )
        for (slot, request), token, logprob in zip(batch, tokens, logprobs, strict=True):
            request.token_ids.append(token)
            request.logprobs.append(logprob)
            stopped = token in request.sampling.stop
            if stopped or len(request.token_ids) == request.sampling.max_tokens:
                self._finish(slot, request, stopped=stopped)

    def _finish(self, slot: int, request: _Request, *, stopped: bool) -> None:
        del self._running[slot]
        self._resumable[request.prompt + tuple(request.token_ids[:-1])] = slot
        if not request.answer.done():
            request.answer.set_result(
                Completion(
                    token_ids=tuple(request.token_ids),
                    logprobs=tuple(request.logprobs),
                    finish_reason="stop" if stopped else "length",
                    policy_version=request.version,
                )
            )
