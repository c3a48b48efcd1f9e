"""The runner on CUDA: bursts of decoding under CUDA graphs, tokens drawn on the device.

Decoding one token of a small model is some hundred small kernels, and a host that starts them one by one, looks at the
tokens and prepares the next step is slower than the device. So a step of decoding is a burst: the inputs of a batch are
sent once, a captured graph of the whole step (model, draw, advance) is replayed several times, each replay reading the
tokens the last one drew, and the host looks once at all that was drawn. What a request drew after its stop token is
dropped; its keys and values went to blocks of its own or to the spare block. Prompts are one replay of a graph too.

Graphs are captured for a few sizes, when first needed. They hold addresses: caches and weights are only ever
changed in place. Decoder layers are compiled once, with the number of rows left open.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agent_r1.engines.local.batch import PagedBatch, block_tables, padded, step_arrays
from agent_r1.engines.local.blocks import BLOCK_SIZE, SPARE_BLOCK, blocks_for
from agent_r1.engines.local.cuda.sampling_kernels import DrawResults, SampleSettings, advance, draw
from agent_r1.engines.local.request import Request
from agent_r1.engines.local.runner import Drawing, ModelRunner, Sampled
from agent_r1.engines.local.sampling import uniforms
from agent_r1.engines.local.scheduler import Chunk
from agent_r1.models import freeze_gc, fuse_projections
from agent_r1.types import SamplingParams

GraphKey = tuple[Any, ...]
"""`decode`, rows, restricted; or `prefill`, tokens, rows, the longest, restricted."""

BURST = 8
"""Tokens a request draws between two looks of the host: each look costs about a step, each token drawn after a stop is
in vain."""


class CudaRunner(ModelRunner):
    """A copy of `model` on a GPU."""

    burst = BURST

    def __init__(
        self,
        model: nn.Module,
        *,
        max_requests: int,
        context_length: int,
        compile_layers: bool = True,
        **memory: Any,
    ) -> None:
        super().__init__(model, max_requests=max_requests, context_length=context_length, **memory)
        fuse_projections(self._model)
        if self._dtype != torch.float32:
            self._model.set_output_embeddings(_ExactHead(self._model.get_output_embeddings()))
        self._inputs = _DecodeInputs(bucket(max_requests), blocks_for(context_length), self._device)
        self._prompts = _PromptInputs(blocks_for(context_length), self._device)
        self._drawn = self._inputs.heads[0]  # what the latest step drew last, a token a row
        self._graphs: dict[GraphKey, torch.cuda.CUDAGraph] = {}
        self._pool: Any = None
        self._last_position = int(getattr(self._config, "max_position_embeddings", context_length)) - 1
        if compile_layers:
            with torch.cuda.device(self._device):
                self._compile()
        freeze_gc()

    def forget(self) -> None:
        """Empty the cache in place: graphs hold its address."""
        for keys, values in self._caches:
            keys.zero_()
            values.zero_()

    def draw(self, chunks: list[Chunk], after: list[Chunk] | None = None) -> Drawing:
        """A burst when every chunk is one token of a request that samples; else compute prompts and draw once."""
        with torch.cuda.device(self._device):  # kernels, graphs and events go to the current device
            if all(chunk.length == 1 and chunk.samples for chunk in chunks):
                return self._decode(chunks, after)
            return self._prefill(chunks)

    # --- prompts ---------------------------------------------------------------------------------------------------

    def _prefill(self, chunks: list[Chunk]) -> Drawing:
        sampling = [chunk for chunk in chunks if chunk.samples]
        lengths = [chunk.length for chunk in chunks]
        size = prompt_bucket(sum(lengths), len(chunks), max(lengths))
        if size is None:
            return self._prefill_freely(chunks, sampling)
        num_tokens, rows, longest = size
        settings, restricted = _settings(sampling, rows, 1)
        graph = self._graph(("prefill", num_tokens, rows, longest, restricted))
        self._prompts.fill(chunks, num_tokens, rows, settings)
        graph.replay()
        self._drawn = self._prompts.results.tokens[0]
        return _Pending(self._prompts.results.first(len(sampling)), [1] * len(sampling))

    def _prefill_freely(self, chunks: list[Chunk], sampling: list[Chunk]) -> Drawing:
        logits = self.forward(chunks)
        if not sampling:
            return Sampled([], [])
        settings, restricted = _settings(sampling, len(sampling), 1)
        results = DrawResults.empty(1, len(sampling), self._device)
        step = torch.zeros(1, dtype=torch.int32, device=self._device)
        drawn_as = SampleSettings.empty(1, len(sampling), self._device)
        drawn_as.fill(settings.to(self._device, non_blocking=True))
        draw(logits, drawn_as, step, results, restricted=restricted)
        self._drawn = results.tokens[0]
        return _Pending(results, [1] * len(sampling))

    def _prefill_once(self, num_tokens: int, rows: int, longest: int, restricted: bool) -> None:
        prompts = self._prompts
        token_ids, positions, slots = prompts.tokens[:, :num_tokens]
        batch = PagedBatch(
            slot_mapping=slots,
            block_tables=prompts.tables[:rows],
            context_lengths=prompts.ends[:rows],
            query_starts=prompts.query_starts[: rows + 1],
            positions=positions,
            max_query_length=longest,
        )
        output: Any = self._model(
            input_ids=token_ids[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=prompts.logit_rows[:rows],
            paged=batch,
        )
        settings, results = prompts.settings.first(rows), prompts.results.first(rows)
        draw(output.logits[0], settings, prompts.first_step, results, restricted=restricted)

    # --- decoding --------------------------------------------------------------------------------------------------

    def _decode(self, chunks: list[Chunk], after: list[Chunk] | None) -> Drawing:
        """One burst. The tokens of chunks that continue a step under way are on the device already."""
        rows, steps = bucket(len(chunks)), max(chunk.draws for chunk in chunks)
        settings, restricted = _settings(chunks, rows, BURST)
        graph = self._graph(("decode", rows, restricted))
        drawing = {chunk.request: row for row, chunk in enumerate(c for c in after or () if c.samples)}
        self._inputs.fill(chunks, rows, steps, settings, drawing, self._drawn)
        for _ in range(steps):
            graph.replay()
        self._drawn = self._inputs.heads[0]
        return _Pending(self._inputs.results.first(len(chunks), steps), [chunk.draws for chunk in chunks])

    def _graph(self, key: GraphKey) -> torch.cuda.CUDAGraph:
        """The captured step of a kind for so many rows (and tokens)."""
        known = self._graphs.get(key)
        if known is not None:
            return known
        kind, *sizes = key
        once: Callable[..., None] = self._decode_once if kind == "decode" else self._prefill_once
        step = partial(once, *sizes)
        token_ids = self._inputs.heads[0].clone()  # of a burst under way: the next one may need them
        self._inputs.clear()
        self._prompts.clear()
        # Kernels are compiled and libraries initialised on a stream of its own, as capturing asks for.
        beside = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(beside):
            for _ in range(2):
                step()
        torch.cuda.current_stream(self._device).wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        # Tools may use the device from threads of their own meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            step()
        self._pool = self._pool or graph.pool()
        self._graphs[key] = graph
        self._inputs.heads[0].copy_(token_ids)
        return graph

    def _decode_once(self, rows: int, restricted: bool) -> None:
        """One token of each row: compute it, draw the next, and make it the input."""
        inputs = self._inputs
        token_ids, positions = inputs.heads[:, :rows]
        batch = PagedBatch(
            slot_mapping=None,
            block_tables=inputs.tables[:rows],
            context_lengths=inputs.contexts[:rows],
            query_starts=inputs.query_starts,
            positions=positions,
            max_query_length=1,
        )
        output: Any = self._model(input_ids=token_ids[None], position_ids=positions[None], use_cache=False, paged=batch)
        results = inputs.results.first(rows)
        draw(output.logits[0], inputs.settings.first(rows), inputs.step, results, restricted=restricted)
        heads = inputs.heads[:, :rows]
        advance(results.tokens, inputs.step, heads, inputs.contexts, last_position=self._last_position)
        inputs.step += 1

    # --- compiling -------------------------------------------------------------------------------------------------

    def _compile(self) -> None:
        """Compile the decoder layers; a model that cannot be compiled runs as it is."""
        # Layers of one model share one piece of code, and so do the trainer's: leave room for all their variants.
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
        for keys, values in self._caches:
            torch._dynamo.mark_static(keys)
            torch._dynamo.mark_static(values)
        layers: Any = ()
        try:
            layers = self._model.get_decoder().layers
            for layer in layers:
                layer.compile(dynamic=True)
            with torch.inference_mode():
                self._try_shapes()
        except Exception as error:  # noqa: BLE001 - compilers fail in any way they like
            for layer in layers:
                layer._compiled_call_impl = None
            warnings.warn(
                f"the engine could not compile {type(self._model).__name__} and runs it uncompiled, which is slower: "
                f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
                stacklevel=2,
            )

    def _try_shapes(self) -> None:
        """A step of decoding and one of prompts, all in the spare block.

        Kernels are cut for the sizes seen here, so these are large ones: what is quickest for 510 rows, all of them in
        the device's own cache, is not for 1,024. Sizes that are equal by chance would be taken for equal for good, so
        here no two are: widths of block tables are multiples of 16, these rows are not.
        """
        self._decode_once(max(2, min(self._inputs.heads.shape[1], 1024) - 2), restricted=False)
        prompts = [Request(prompt=(0,) * length, sampling=SamplingParams()) for length in (1900, 77, 30)]
        for request in prompts:
            request.blocks = [SPARE_BLOCK] * (blocks_for(len(request.prompt)) + 1)
        self.forward([Chunk(request, 0, len(request.prompt)) for request in prompts])


class _DecodeInputs:
    """The inputs of a burst on the device, at addresses that never change, and what it draws."""

    def __init__(self, rows: int, blocks: int, device: torch.device) -> None:
        self.heads = torch.zeros(2, rows, dtype=torch.int64, device=device)  # token ids, positions
        self.contexts = torch.zeros(rows, dtype=torch.int32, device=device)
        # A burst may run past the end of a request that holds all its blocks: one more column keeps it in the table.
        self.tables = torch.zeros(rows, padded(blocks + 1, 16), dtype=torch.int32, device=device)
        self.query_starts = torch.zeros(1, dtype=torch.int32, device=device)  # decoding has no need of them
        self.settings = SampleSettings.empty(BURST, rows, device)
        self.step = torch.zeros(1, dtype=torch.int32, device=device)
        self.results = DrawResults.empty(BURST, rows, device)

    def clear(self) -> None:
        """Inputs that harm nobody: token 0 at position 0 of the spare block."""
        for tensor in (self.heads, self.contexts, self.tables, self.step):
            tensor.zero_()
        self.contexts += 1

    def fill(
        self,
        chunks: Sequence[Chunk],
        rows: int,
        steps: int,
        settings: Tensor,
        drawing: Mapping[Request, int],
        drawn: Tensor,
    ) -> None:
        """The inputs of these chunks; rows beyond them are harmless. Nothing here waits for the device.

        Tokens that we have not seen yet are in `drawn`, at the places that `drawing` says.
        """
        starts = np.array([chunk.start for chunk in chunks], dtype=np.int64)
        columns = (int(starts.max()) + steps - 1) // BLOCK_SIZE + 1
        table = block_tables(chunks, rows, columns)
        heads = np.zeros((2, rows), dtype=np.int64)
        # Places are looked up on the device below; below 0 they cannot be taken for tokens.
        heads[0, : len(chunks)] = [
            -1 - drawing[chunk.request] if chunk.foreseen else chunk.request.tokens[-1] for chunk in chunks
        ]
        heads[1, : len(chunks)] = starts
        moved = _send(heads, self.heads.device)
        if drawing:
            places = (-1 - moved[0]).clamp(min=0)
            moved[0] = torch.where(moved[0] < 0, drawn.index_select(0, places).long(), moved[0])
        self.heads[:, :rows] = moved
        self.contexts[:rows] = moved[1] + 1
        self.tables[:rows, : table.shape[1]] = _send(table, self.heads.device)
        self.settings.first(rows).fill(settings.to(self.heads.device, non_blocking=True))
        self.step.zero_()


class _PromptInputs:
    """The same for a step of prompts; what belongs to no request changes nothing."""

    def __init__(self, blocks: int, device: torch.device) -> None:
        rows, tokens = PROMPT_ROWS[-1], PROMPT_TOKENS[-1]
        self.tokens = torch.zeros(3, tokens, dtype=torch.int64, device=device)
        self.tables = torch.zeros(rows, padded(blocks + 1, 16), dtype=torch.int32, device=device)
        self.ends = torch.zeros(rows, dtype=torch.int32, device=device)
        self.query_starts = torch.zeros(rows + 1, dtype=torch.int32, device=device)
        self.logit_rows = torch.zeros(rows, dtype=torch.int64, device=device)
        self.settings = SampleSettings.empty(1, rows, device)
        self.first_step = torch.zeros(1, dtype=torch.int32, device=device)
        self.results = DrawResults.empty(1, rows, device)

    def clear(self) -> None:
        """Inputs that harm nobody: padding only."""
        for tensor in (self.tokens, self.tables, self.ends, self.query_starts, self.logit_rows):
            tensor.zero_()

    def fill(self, chunks: Sequence[Chunk], num_tokens: int, rows: int, settings: Tensor) -> None:
        """The inputs of these chunks. Nothing here waits for the device."""
        arrays = step_arrays(chunks, num_tokens=num_tokens, num_requests=rows)
        device = self.tokens.device
        self.tokens[:, :num_tokens] = _send(arrays.tokens, device)
        self.tables[:rows, : arrays.tables.shape[1]] = _send(arrays.tables, device)
        small = _send(np.concatenate([arrays.ends, arrays.query_starts, arrays.logit_rows[:rows]]), device)
        self.ends[:rows] = small[:rows]
        self.query_starts[: rows + 1] = small[rows : 2 * rows + 1]
        self.logit_rows[:rows] = small[2 * rows + 1 :]
        self.settings.first(rows).fill(settings.to(device, non_blocking=True))


PROMPT_TOKENS = (32, 64, 128, 256, 512, 1024, *range(2048, 16385, 2048))
PROMPT_ROWS = (8, 32, 128, 512)
LONGEST_PROMPTS = (32, 128, 512, 2048, 8192)


def prompt_bucket(num_tokens: int, num_requests: int, longest: int) -> tuple[int, int, int] | None:
    """What a step of prompts is padded to: tokens, rows, and the longest of them; None when no graph is that large.

    The more rows and the longer, the more programs of the attention kernel find nothing to do.

    >>> prompt_bucket(100, 3, 60), prompt_bucket(9000, 140, 100), prompt_bucket(20000, 2, 15000)
    ((128, 8, 128), (10240, 512, 128), None)
    """
    tokens = next((size for size in PROMPT_TOKENS if size >= num_tokens), None)
    rows = next((size for size in PROMPT_ROWS if size >= num_requests), None)
    reach = next((size for size in LONGEST_PROMPTS if size >= longest), None)
    return None if tokens is None or rows is None or reach is None else (tokens, rows, reach)


def _settings(chunks: Sequence[Chunk], rows: int, draws: int) -> tuple[Tensor, bool]:
    """What `SampleSettings.fill` takes, in pinned memory, and whether anyone has a top-k or top-p."""
    wishes = [chunk.request.sampling for chunk in chunks]
    table = np.zeros((rows, 3 + draws), dtype=np.float32)
    table[:, 1] = 1.0  # padding rows keep everything, which costs nothing
    columns = [(wish.temperature, wish.top_p, wish.top_k) for wish in wishes]
    table[: len(chunks), :3] = np.array(columns, dtype=np.float32).reshape(-1, 3)
    table[: len(chunks), 3:] = uniforms([wish.seed for wish in wishes], [c.num_sampled for c in chunks], draws)
    return torch.from_numpy(table).pin_memory(), any(wish.top_k or wish.top_p < 1 for wish in wishes)


def _send(array: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    return torch.from_numpy(array).pin_memory().to(device, non_blocking=True)


def bucket(requests: int) -> int:
    """How many rows a batch is padded to; never 1, which compilers treat as a shape of its own.

    >>> [bucket(n) for n in (1, 3, 60, 65, 300, 700)]
    [2, 4, 64, 128, 320, 768]
    """
    if requests <= 64:
        return max(2, 1 << (requests - 1).bit_length())
    multiple = 64 if requests <= 512 else 128
    return -(-requests // multiple) * multiple


class _Pending:
    """A draw on its way to the host."""

    def __init__(self, results: DrawResults, draws: Sequence[int]) -> None:
        self._draws = draws
        self._tokens = results.tokens.to("cpu", non_blocking=True)
        self._logprobs = results.logprobs.to("cpu", non_blocking=True)
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copied.record()

    def done(self) -> bool:
        """Whether the copies have arrived."""
        return bool(self._copied.query())  # type: ignore[no-untyped-call]

    def result(self) -> Sampled:
        """What was drawn, no more for each request than it may take."""
        self._copied.synchronize()
        # As numpy arrays: a tensor's own `tolist` takes ten times as long, and everybody waits for it.
        tokens, logprobs = self._tokens.numpy().T.tolist(), self._logprobs.numpy().T.tolist()
        return Sampled(
            [row[:count] for row, count in zip(tokens, self._draws, strict=True)],
            [row[:count] for row, count in zip(logprobs, self._draws, strict=True)],
        )


class _ExactHead(nn.Module):
    """An output layer whose logits are not rounded to the weights' type.

    Two logits of 20 that differ by less than 0.06 are equal in bfloat16: log-probabilities would be off by as much. The
    product is summed up in float32 anyway; this keeps it.
    """

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = head.weight, head.bias

    def forward(self, hidden: Tensor) -> Tensor:
        """float32 logits of hidden states."""
        flat = torch.mm(hidden.flatten(0, -2), self.weight.T, out_dtype=torch.float32)
        if self.bias is not None:
            flat = flat + self.bias
        return flat.view(*hidden.shape[:-1], -1)
