"""The runner on CUDA: bursts of decoding under CUDA graphs, with sampling on the device.

Decoding one token of a small model takes about a hundred small kernels. A host that launches them one by one, reads the
tokens and prepares the next step is slower than the device. So a decoding step is a burst: the inputs of a batch are
sent once, a captured graph of the whole step (model, sample, advance) is replayed several times, each replay reading
the tokens that the previous one sampled, and the host reads all of them once. Tokens that a request sampled after its
stop token are dropped; their keys and values went to blocks of the request or to the spare block. Prompts are one
replay of a graph too, unless their sizes are rare.

Decoder layers are compiled once, with a dynamic number of rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from agent_r1.engines.local.batch import PagedBatch
from agent_r1.engines.local.blocks import SPARE_BLOCK, blocks_for
from agent_r1.engines.local.cuda.graphs import (
    BURST,
    DecodeInputs,
    GraphCache,
    GraphKey,
    PromptInputs,
    decode_bucket,
    prompt_bucket,
    sample_settings,
)
from agent_r1.engines.local.cuda.sampling_kernels import SampleResults, SampleSettings, advance, sample
from agent_r1.engines.local.images.prompt_images import has_image_tokens
from agent_r1.engines.local.request import Chunk, Request
from agent_r1.engines.local.runner import ModelRunner, PendingSample, Sampled
from agent_r1.models import freeze_gc, fuse_projections, watch_compilation
from agent_r1.types import SamplingParams


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
        fuse_projections(self._decoder)
        if self._dtype != torch.float32:
            self._model.set_output_embeddings(_Float32Head(self._model.get_output_embeddings()))
        self._inputs = DecodeInputs(decode_bucket(max_requests), blocks_for(context_length), self._device)
        self._prompts = PromptInputs(blocks_for(context_length), self._device)
        self._last_tokens = self._inputs.next_tokens[0]  # the last token that the latest step sampled for each row
        self._graphs = GraphCache(self._device)
        self._last_position = int(getattr(self._config, "max_position_embeddings", context_length)) - 1
        if compile_layers:
            with torch.cuda.device(self._device):
                self._compile()
        freeze_gc()

    def read_metrics(self) -> dict[str, float]:
        """Counts since the last call: encoded images, and captured graphs."""
        return {**super().read_metrics(), **self._graphs.read_metrics()}

    def finish(self) -> None:
        """Wait for the device: under NVIDIA's MPS, a process that ends before it may break the others."""
        with suppress(RuntimeError):  # one that has failed computes nothing more
            torch.cuda.synchronize(self._device)

    def clear_cache(self) -> None:
        """Empty the KV cache in place: graphs hold its address."""
        for keys, values in self._caches:
            keys.zero_()
            values.zero_()

    def sample(self, chunks: list[Chunk], after: list[Chunk] | None = None) -> PendingSample:
        """A burst when every chunk is one token of a request that samples; else compute prompts and sample once."""
        with torch.cuda.device(self._device):  # kernels, graphs and events go to the current device
            if all(chunk.length == 1 and chunk.samples for chunk in chunks) and not self._has_images(chunks):
                return self._decode(chunks, after)
            return self._prefill(chunks)

    def _has_images(self, chunks: Sequence[Chunk]) -> bool:
        """Whether a step computes image tokens: it is computed without a graph."""
        return self.images is not None and any(map(has_image_tokens, chunks))

    # --- prompts ---------------------------------------------------------------------------------------------------

    def _prefill(self, chunks: list[Chunk]) -> PendingSample:
        sampling = [chunk for chunk in chunks if chunk.samples]
        lengths = [chunk.length for chunk in chunks]
        sizes = prompt_bucket(sum(lengths), len(chunks), max(lengths))
        if sizes is None or self._has_images(chunks):
            return self._prefill_without_graph(chunks, sampling)
        num_tokens, rows, longest = sizes
        settings, restricted = sample_settings(sampling, rows, 1)
        key = ("prefill", num_tokens, rows, longest, restricted)
        if not self._graphs.count_use(key):
            return self._prefill_without_graph(chunks, sampling)
        graph = self._graph(key)
        self._prompts.fill(chunks, num_tokens, rows, settings, reads_images=self.images is not None)
        graph.replay()
        self._last_tokens = self._prompts.results.tokens[0]
        return _DeviceSample(self._prompts.results.first(len(sampling)), [1] * len(sampling))

    def _prefill_without_graph(self, chunks: list[Chunk], sampling: list[Chunk]) -> PendingSample:
        logits = self.forward(chunks)
        if not sampling:
            return Sampled([], [])
        table, restricted = sample_settings(sampling, len(sampling), 1)
        results = SampleResults.empty(1, len(sampling), self._device)
        step = torch.zeros(1, dtype=torch.int32, device=self._device)
        settings = SampleSettings.empty(1, len(sampling), self._device)
        settings.fill(table.to(self._device, non_blocking=True))
        sample(logits, settings, step, results, restricted=restricted)
        self._last_tokens = results.tokens[0]
        return _DeviceSample(results, [1] * len(sampling))

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
        logits = self._logits(token_ids, batch, prompts.logit_rows[:rows])
        settings, results = prompts.settings.first(rows), prompts.results.first(rows)
        sample(logits, settings, prompts.first_step, results, restricted=restricted)

    # --- decoding --------------------------------------------------------------------------------------------------

    def _decode(self, chunks: list[Chunk], after: list[Chunk] | None) -> PendingSample:
        """One burst. The tokens of chunks that continue the pending step are on the device already."""
        rows, steps = decode_bucket(len(chunks)), max(chunk.new_tokens for chunk in chunks)
        settings, restricted = sample_settings(chunks, rows, BURST)
        graph = self._graph(("decode", rows, restricted))
        pending_rows = {chunk.request: row for row, chunk in enumerate(c for c in after or () if c.samples)}
        self._inputs.fill(chunks, rows, steps, settings, pending_rows, self._last_tokens)
        if self.family is not None and self.family.two_dimensional:
            self._inputs.move_positions(chunks)
        for _ in range(steps):
            graph.replay()
        self._last_tokens = self._inputs.next_tokens[0]
        return _DeviceSample(self._inputs.results.first(len(chunks), steps), [chunk.new_tokens for chunk in chunks])

    def _decode_once(self, rows: int, restricted: bool) -> None:
        """One token per row: compute it, sample the next one, and make that the input."""
        inputs = self._inputs
        token_ids, positions = inputs.next_tokens[:, :rows]
        batch = PagedBatch(
            slot_mapping=None,
            block_tables=inputs.tables[:rows],
            context_lengths=inputs.contexts[:rows],
            query_starts=inputs.query_starts,
            positions=positions,
            max_query_length=1,
        )
        logits = self._logits(token_ids, batch)
        results = inputs.results.first(rows)
        sample(logits, inputs.settings.first(rows), inputs.step, results, restricted=restricted)
        next_tokens = inputs.next_tokens[:, :rows]
        advance(results.tokens, inputs.step, next_tokens, inputs.contexts, last_position=self._last_position)
        inputs.step += 1

    # --- graphs and compilation ------------------------------------------------------------------------------------

    def _graph(self, key: GraphKey) -> torch.cuda.CUDAGraph:
        """The graph of these sizes, captured if it was not."""
        graph = self._graphs.get(key)
        if graph is not None:
            return graph
        kind, *sizes = key
        once: Callable[..., None] = self._decode_once if kind == "decode" else self._prefill_once
        token_ids = self._inputs.next_tokens[0].clone()  # of the pending burst: the next one may need them
        self._inputs.clear()
        self._prompts.clear()
        graph = self._graphs.capture(key, partial(once, *sizes))
        self._inputs.next_tokens[0].copy_(token_ids)
        return graph

    def _compile(self) -> None:
        """Compile the decoder layers; a model that cannot be compiled runs uncompiled."""
        watch_compilation()
        # The layers of one model share a code object, also with the trainer's: leave room for all their variants.
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
                self._run_sample_shapes()
        except Exception as error:  # noqa: BLE001 - compilers raise anything
            for layer in layers:
                layer._compiled_call_impl = None
            warnings.warn(
                f"the engine could not compile {type(self._model).__name__} and runs it uncompiled, which is slower: "
                f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
                stacklevel=2,
            )

    def _run_sample_shapes(self) -> None:
        """Run a step of decoding and one of prompts, all in the spare block.

        The compiler tunes kernels for the sizes seen here, so these are large: what is fastest for 510 rows, which fit
        the device's cache, is not fastest for 1,024. It would take sizes that are equal by chance to be always equal,
        so no two are equal here: widths of block tables are multiples of 16, these numbers of rows are not.
        """
        self._decode_once(max(2, min(self._inputs.next_tokens.shape[1], 1024) - 2), restricted=False)
        prompts = [Request(prompt=(0,) * length, sampling=SamplingParams()) for length in (1900, 77, 30)]
        for request in prompts:
            request.blocks = [SPARE_BLOCK] * (blocks_for(len(request.prompt)) + 1)
        self.forward([Chunk(request, 0, len(request.prompt)) for request in prompts])


class _DeviceSample:
    """Sampled tokens that are being copied to the host."""

    def __init__(self, results: SampleResults, counts: Sequence[int]) -> None:
        self._counts = counts
        self._tokens = results.tokens.to("cpu", non_blocking=True)
        self._logprobs = results.logprobs.to("cpu", non_blocking=True)
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copied.record()

    def done(self) -> bool:
        """Whether the copies have arrived."""
        return bool(self._copied.query())  # type: ignore[no-untyped-call]

    def result(self) -> Sampled:
        """The sampled tokens, at most as many per request as its chunk allows."""
        self._copied.synchronize()
        # Through NumPy: a tensor's `tolist` takes ten times as long, and all callers wait for it.
        tokens, logprobs = self._tokens.numpy().T.tolist(), self._logprobs.numpy().T.tolist()
        return Sampled(
            [row[:count] for row, count in zip(tokens, self._counts, strict=True)],
            [row[:count] for row, count in zip(logprobs, self._counts, strict=True)],
        )


class _Float32Head(nn.Module):
    """An output layer whose logits are not rounded to the weights' type.

    Two logits around 20 that differ by less than 0.06 are equal in bfloat16: log-probabilities would be off by as much.
    The product is accumulated in float32 anyway; this keeps it.
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
